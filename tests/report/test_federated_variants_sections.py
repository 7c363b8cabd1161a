"""Sections beside the table of systems: ablation, contrasts, clients, leakage of prototypes, what is measured."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from federated_run_folders import ABLATIONS, SCALING, auroc_of, paper_config, uar_of, write_federated_run
from fedsynth.report import collect_records, load_run
from fedsynth.report.paper import read_paper_values
from fedsynth.report.section import Material
from fedsynth.report.sections.ablation import ablation_section
from fedsynth.report.sections.client_scaling import client_scaling_section
from fedsynth.report.sections.federated_definitions import chance_spread, definitions_section
from fedsynth.report.sections.prototype_leakage import leakage_section
from fedsynth.report.sections.system_contrasts import system_contrast_section

MINUS = "\N{MINUS SIGN}"
SECTIONS = (
    ablation_section, client_scaling_section, definitions_section, leakage_section, system_contrast_section,
)  # fmt: skip


@pytest.fixture
def make(tmp_path):
    def inner(seeds=(42,), **options) -> Material:
        runs = tuple(
            load_run(write_federated_run(tmp_path, seed, **options), log_dir=tmp_path) for seed in seeds
        )
        return Material(runs, tuple(collect_records(runs)))

    return inner


def cells_of(text: str, first_cell: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first_cell} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("build", SECTIONS)
def test_sections_without_their_stages_are_left_out(make, build):
    assert build(make(arms=())) is None


def test_ablations_stand_in_the_papers_order_with_what_they_lose(make):
    section = ablation_section(make(arms=("fedmpa", *reversed(ABLATIONS))))
    labels = [line.split("|")[1].strip() for line in section.text.splitlines() if line.startswith("| FedMPA")]
    assert labels == [
        "FedMPA", "FedMPA, no repulsion", "FedMPA, no prototype pull", "FedMPA, plain cross-entropy",
        "FedMPA, cross-entropy alone", "FedMPA, softmax-only inference", "FedMPA, clients weighted by records",
        "FedMPA, no server momentum", "FedMPA, no moving average of the bank",
    ]  # fmt: skip
    plain = cells_of(section.text, "FedMPA, plain cross-entropy")
    lost = uar_of("fedmpa_plain_cross_entropy") - uar_of("fedmpa")
    assert plain[3] == f"{lost:.3f}".replace("-", MINUS)
    assert plain[-2:] == ["0.74", f"{MINUS}0.15"]
    assert cells_of(section.text, "FedMPA, no repulsion")[-2:] == ["0.84", f"{MINUS}0.05"]
    assert cells_of(section.text, "FedMPA, softmax-only inference")[-2:] == ["0.80", f"{MINUS}0.09"]
    assert cells_of(section.text, "FedMPA, no prototype pull")[-2:] == ["—", "—"]
    assert cells_of(section.text, "FedMPA")[-2:] == ["0.89", "—"]
    assert "**SIMULATED.**" in section.text


def test_the_full_method_alone_is_no_ablation(make):
    assert ablation_section(make(arms=("fedmpa", "fedavg"))) is None


def test_an_ablation_without_the_full_method_shows_no_difference(make):
    section = ablation_section(make(arms=("fedmpa_no_pull",)))
    assert cells_of(section.text, "FedMPA, no prototype pull")[3] == "—"


def test_contrasts_show_difference_interval_adjusted_p_and_the_papers_difference(make):
    section = system_contrast_section(make(arms=("fedavg", "centralized", "local", "fedmpa")))
    change = uar_of("fedmpa") - uar_of("centralized")
    shown = f"{change:.3f}".replace("-", MINUS)
    bounds = f"[{change - 0.03:.3f}, {change + 0.03:.3f}]".replace("-", MINUS)
    row = cells_of(section.text, f"FedMPA {MINUS} Centralized")
    assert row[1:4] == [f"**{shown}**", bounds, "0.070"]
    assert row[-2:] == [f"{MINUS}0.03", "+0.04"]
    assert cells_of(section.text, f"FedMPA {MINUS} local-only")[-2:] == ["—", "—"]
    (figure,) = section.figures
    assert [text.get_text() for text in figure.figure.axes[0].get_yticklabels()] == [
        f"FedMPA {MINUS} {name}" for name in ("Centralized", "FedAvg", "local-only")
    ]


def test_an_undefined_difference_is_a_dash(make, tmp_path):
    make(arms=("fedavg", "fedmpa"))
    path = tmp_path / "artifacts" / "contrast_systems" / "42" / "manifest.json"
    manifest = json.loads(path.read_text())
    for row in manifest["metrics"]:
        if row["metric"] in ("difference/pps", "p_holm/pps"):
            row |= {"value": None, "ci_low": None, "ci_high": None}
    path.write_text(json.dumps(manifest))
    run = load_run(tmp_path / "runs" / "fedmpa" / "run-42", log_dir=tmp_path)
    section = system_contrast_section(Material((run,), tuple(collect_records([run]))))
    assert cells_of(section.text, f"FedMPA {MINUS} FedAvg")[4:7] == ["—", "—", "—"]


def test_clients_are_sorted_by_number_within_a_system(make):
    section = client_scaling_section(make(arms=tuple(reversed(SCALING))))
    lines = [line for line in section.text.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(row[0], row[1]) for row in cells] == [
        ("FedAvg", "4"), ("", "16"), ("", "64"), ("FedMPA", "4"), ("", "16"), ("", "64"),
    ]  # fmt: skip
    assert cells[2][2] == f"**{uar_of('fedavg_clients_64'):.3f}**"
    assert cells[5][6] == f"**{auroc_of('fedmpa_clients_64'):.3f}**"
    (figure,) = section.figures
    assert figure.figure.axes[0].lines[0].get_ydata().tolist() == [
        uar_of(f"fedavg_clients_{n}") for n in (4, 16, 64)
    ]


def test_one_number_of_clients_is_a_table_without_a_figure(make):
    section = client_scaling_section(make(arms=("fedavg_clients_4", "fedmpa_clients_4")))
    assert section.figures == ()


@pytest.mark.parametrize(("is_speech", "first"), [(True, "audio"), (False, "image")])
def test_leakage_stands_beside_what_guessing_reaches_and_noisy_systems_behind_their_own(
    make, is_speech, first
):
    arms = ("fedproto_dp", "fedmpa_dp", "fedmpa", "fedproto")
    section = leakage_section(make(arms=arms, is_speech=is_speech))
    attacks = next(block for block in section.text.split("\n\n") if block.startswith("| system"))
    rows = [line for line in attacks.splitlines() if f"| {first} |" in line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    assert [row[0] for row in cells] == [
        "FedProto", "FedProto, DP prototypes, ε = 4", "FedMPA", "FedMPA, DP prototypes, ε = 4",
    ]  # fmt: skip
    assert cells[0][2:] == ["**0.450** (0.250)", "**0.600** (0.400)", "**0.700**", "**0.700**"]
    assert cells[1][2:] == ["**0.300** (0.250)", "**0.450** (0.400)", "**0.550**", "**0.550**"]
    (figure,) = section.figures
    assert len(figure.figure.axes) == 3
    assert len(figure.figure.axes[0].patches) == 4 * 3


def test_prototypes_that_are_a_record_are_told_by_how_many_records_are_behind_them(make):
    text = leakage_section(make(arms=("fedproto", "fedproto_dp"))).text
    assert "| system | modality | 1 record | 10+ records |" in text
    assert "| FedProto | fused | 1.000 | 0.000 |" in text
    assert "| FedProto, DP prototypes, ε = 4 | fused | 0.000 | 0.000 |" in text


def test_definitions_come_from_the_stages_and_are_told_once(make):
    text = definitions_section(make((42, 43), arms=("fedavg", "fedmpa"))).text
    assert text.count("mean of sensitivity and specificity of the predicted class") == 1
    assert "| `uar` |" in text


def test_caveats_hold_the_numbers_of_the_run_where_they_differ_from_the_papers(make):
    speech = definitions_section(make(arms=("fedavg",))).text
    assert "standard error of 0.045" in speech
    assert "0.93 on average" in speech
    assert "Here, with" not in speech
    assert "Participants are the unit" in speech
    other = definitions_section(make((43,), arms=("fedavg",), is_speech=False)).text
    assert "Here, with 4,708 and 624, the standard error is 0.012." in other
    assert "Participants are the unit" not in other


def test_spread_by_chance_is_that_of_mann_and_whitney():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4000, 40))
    ranks = stats.rankdata(draws, axis=1)[:, :15].sum(1)
    auroc = (ranks - 15 * 16 / 2) / (15 * 25)
    # The SD of an SD of 4,000 draws is 1.1 %.
    assert chance_spread(15, 25) == pytest.approx(auroc.std(), rel=0.04)
    assert chance_spread(1, 1) == 0.5  # one pair: right or wrong


def test_mean_privacy_score_by_chance_is_the_stated_one():
    spread = chance_spread(163, 56)
    expected = 1 - 2 * stats.halfnorm(scale=spread).mean()
    assert f"{expected:.2f}" == "0.93"


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (-1, 5)])
def test_spread_needs_members_and_non_members(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        chance_spread(*sizes)


def test_no_confusion_matrix_of_the_test_participants_fits_three_of_the_printed_systems():
    """What the caveat says: every matrix of 17 depressed and 39 other participants is tried."""
    printed = {
        (value.arm, value.metric): value.mean for value in read_paper_values({"paper": paper_config()})
    }
    arms = ("centralized", "fedprox", "fedavg", "fedproto", "fedgpd", "fedmpa")

    def fits(arm: str) -> bool:
        return any(
            abs((tp + tn) / 56 - printed[arm, "test/accuracy"]) <= 0.005 + 1e-9
            and abs((tp / 17 + tn / 39) / 2 - printed[arm, "test/uar"]) <= 0.005 + 1e-9
            for tp, tn in product(range(18), range(40))
        )

    assert [arm for arm in arms if not fits(arm)] == ["centralized", "fedprox", "fedavg"]
    assert math.isclose(printed["fedgpd", "test/accuracy"], 0.84)
