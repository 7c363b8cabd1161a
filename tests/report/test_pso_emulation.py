"""A set chosen as the released code does it is nowhere called simply filtered, whatever its arm is called."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text
from pso_run_folder import FILTERED, write_image_run
from rich.console import Console

from fedsynth.compare.groups import group_runs
from fedsynth.compare.results import collect_results
from fedsynth.report import collect_records, load_run
from fedsynth.report.console import print_headline
from fedsynth.report.content import ReportContent
from fedsynth.report.gallery import Gallery
from fedsynth.report.glossary import arm_title, row_title
from fedsynth.report.markdown import render_markdown
from fedsynth.report.pso_emulation import EMULATED, RELEASED_CODE, emulated_title
from fedsynth.report.pso_systems import emulated_arms, origin_of
from fedsynth.report.section import Material
from fedsynth.report.sections import build_sections
from fedsynth.stages.select_images import spec

PLAIN = re.compile(r"DiADM \+ features, filtered")


def reported(folder: Path, **settings: str) -> ReportContent:
    """The report of a run whose filtered set was made with these settings."""
    run_folder = write_image_run(folder)
    path = run_folder / "run.json"
    info = json.loads(path.read_text())
    info["config"]["stages"][FILTERED] |= settings
    path.write_text(json.dumps(info))
    runs = (load_run(run_folder, log_dir=folder),)
    records = tuple(collect_records(runs))
    sections, left_out = build_sections(Material(runs, records))
    assert not left_out
    return ReportContent(runs, records, Gallery((), ()), sections=tuple(sections))


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    return reported(tmp_path_factory.mktemp("emulated"), filter=RELEASED_CODE)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    return reported(tmp_path_factory.mktemp("masked"))


def drawn(content: ReportContent) -> str:
    texts = [text for one in content.figures for text in one.figure.findobj(Text)]
    return "\n".join(text.get_text().replace("\n", " ") for text in texts)


def printed(content: ReportContent) -> str:
    console = Console(width=400, record=True, file=io.StringIO())
    print_headline(content, console)
    return console.export_text()


def test_the_setting_is_that_of_the_stage() -> None:
    assert RELEASED_CODE == spec.RELEASED_CODE


def test_report_console_and_figures_say_that_flagged_candidates_may_be_among_them(
    emulated: ReportContent,
) -> None:
    assert emulated.emulated == {FILTERED}
    for text in (render_markdown(emulated), printed(emulated), drawn(emulated)):
        assert f"DiADM + features, {EMULATED}" in text
        assert not PLAIN.search(text)
    assert "What is said here of refusing does not hold for such a set" in render_markdown(emulated)


def test_a_masked_set_is_called_filtered(masked: ReportContent) -> None:
    assert masked.emulated == frozenset()
    for text in (render_markdown(masked), printed(masked), drawn(masked)):
        assert PLAIN.search(text)
        assert "may hold flagged" not in text


STAGES = {
    "images": {"stage": "xray_images"},
    "chosen": {
        "stage": "select_images",
        "inputs": {"candidates": "drawn", "images": "images", "reidentifier": "reid"},
        "filter": "released_code",
        "arm": "mine",
    },
    "masked": {
        "stage": "select_images",
        "inputs": {"candidates": "drawn", "images": "images", "reidentifier": "reid"},
        "filter": "mask",
        "arm": "other",
    },
    "trained": {
        "stage": "tstr_densenet",
        "inputs": {"train": "chosen", "images": "images"},
        "arm": "trained_arm",
    },
    "audited": {"stage": "audit_images", "inputs": {"released": "chosen"}, "arm": "audited_arm"},
    "tested": {
        "stage": "site_test",
        "inputs": {"classifier": "trained", "images": "images"},
        "arm": "tested_arm",
    },
    "real": {"stage": "tstr_densenet", "inputs": {"train": "images", "images": "images"}, "arm": "real"},
    "safe": {"stage": "tstr_densenet", "inputs": {"train": "masked", "images": "images"}, "arm": "safe"},
    "union": {"stage": "data_sharing", "inputs": {"first": "chosen", "second": "masked"}},
}


def test_an_arm_is_marked_by_what_its_images_passed_not_by_its_name() -> None:
    folds = SimpleNamespace(notes={"stages": {"a": "images", "b": "chosen", "c": "masked"}})
    run = SimpleNamespace(config={"stages": STAGES}, of_kind=lambda kind: [folds])
    assert emulated_arms([run]) == {"mine", "trained_arm", "audited_arm", "tested_arm", "b"}
    found = {name: origin_of({"stages": STAGES}, name) for name in ("chosen", "masked", "union")}
    assert [one.is_emulated for one in found.values()] == [True, False, True]
    assert found["chosen"].title == f"unconditional diffusion, {EMULATED}"
    assert found["union"].title == f"shared sets of 1 sites, {EMULATED}"


@pytest.mark.parametrize(
    ("arm", "title"),
    [
        ("diadm_filtered_site_0", f"DiADM, {EMULATED}, site 0"),
        ("diadm_released_code", "DiADM, released code (may hold flagged)"),
        ("diadm_drop", f"DiADM, drop, {EMULATED}"),
        ("mine", f"mine, {EMULATED}"),
    ],
)
def test_titles_of_arms(arm: str, title: str) -> None:
    assert arm_title(arm, {arm}) == title
    assert row_title("tstr_x", arm, {arm}) == f"TSTR: {title}"
    assert arm_title(arm, {"another"}) == arm_title(arm)


@given(st.lists(st.sampled_from(["filtered", "unfiltered", "released code", "site 0", "drop"]), unique=True))
def test_different_titles_stay_different_and_none_is_plainly_filtered(words: list[str]) -> None:
    title = ", ".join(["DiADM", *words])
    told = emulated_title(title)
    assert "may hold flagged" in told
    assert not re.search(r"\bfiltered\b", told)
    before = told.replace("released-code filter", "filtered").replace(" (may hold flagged)", "")
    assert before in (title, f"{title}, filtered")


def test_a_comparison_says_in_which_groups(emulated: ReportContent, masked: ReportContent) -> None:
    both = group_runs([*emulated.runs, *masked.runs])
    titles = {row.title for row in collect_results(both.groups).rows if row.arm == FILTERED}
    (tag,) = [group.tag for group in both.groups if emulated_arms(group.runs)]
    assert f"TSTR: DiADM + features, filtered; in {tag} {EMULATED}" in titles
    alone = {row.title for row in collect_results(group_runs(emulated.runs).groups).rows}
    assert f"TSTR: DiADM + features, {EMULATED}" in alone


def test_the_report_says_from_what_labels_classifiers_learned(tmp_path: Path, masked: ReportContent) -> None:
    soft = render_markdown(reported(tmp_path, labels="soft"))
    assert "**Soft labels** are ours, not the paper's" in soft
    assert "what several images of one person tell together" in soft
    assert "DiADM + features, filtered, soft labels" in soft
    assert "Soft labels" not in render_markdown(masked)
