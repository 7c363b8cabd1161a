"""The written report: complete, self-contained, honest about what is missing or simulated."""

from __future__ import annotations

import json
import re

import pytest

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.report import build_report
from fedsynth.report.glossary import is_headline
from fedsynth.report.html import render_html
from fedsynth.report.tables import cell, duration, number, table

#: Stages enough for the text, with one figure or two.
QUICK = ("clients", "fusion_encoder", "release")
FIGURES = {
    "partition",
    "learning_fusion_encoder",
    "learning_latent_ddpm",
    "roc",
    "precision_recall",
    "latent_pca",
    "neighbor_distances",
    "calibration",
}


@pytest.fixture(scope="module")
def whole(make_lab, tmp_path_factory):
    """The report of one whole run on real data, drawn once for the tests that only read it."""
    lab = make_lab(tmp_path_factory.mktemp("whole") / "logs")
    return build_report([lab.run()], lab.log_dir / "out", log_dir=lab.log_dir)


@pytest.fixture
def build(lab):
    def inner(*runs, **options):
        return build_report(runs, lab.log_dir / "out", log_dir=lab.log_dir, **options)

    return inner


def test_report_of_a_whole_run_has_every_section_and_figure(whole):
    files = whole
    text = files.markdown.read_text()
    sections = re.findall(r"^## (.*)$", text, re.M)
    assert sections == [
        "Headline results",
        "How to read it",
        "Encoder systems",
        "Train on synthetic, test on real (TSTR)",
        "Fidelity and disclosure",
        "Privacy scope",
        "Data",
        "Clients and splits",
        "Stages",
        "Further figures",
        "All metrics",
        "How it was run",
        "Seeds",
    ]
    assert {path.stem for path in files.figures} == FIGURES
    for link in re.findall(r"\]\((figures/[^)]*)\)", text):
        assert (files.markdown.parent / link).read_bytes().startswith(b"\x89PNG")


def test_headline_shows_paper_ours_interval_seeds_and_difference(whole):
    text = whole.markdown.read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| TSTR: DP diffusion | AUROC")]
    assert row == (
        "| TSTR: DP diffusion | AUROC | 0.6250 | 0.6000 ± 0.1000 | [0.3516, 0.8484] | 3 |"
        " \N{MINUS SIGN}0.0250 |"
    )


def test_json_is_strict_and_holds_the_records(lab, build):
    files = build(lab.run(epsilon=float("inf"), stages=QUICK))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    value = json.loads(files.json.read_text(), parse_constant=refuse)
    assert value["records"] == [record.to_dict() for record in files.records]
    assert value["privacy"]["run-42"]["ledger"][0]["epsilon"] == "inf"
    assert value["simulated"] is False
    assert value["runs"][0]["data"][0]["sha256"] == "ab" * 32


def test_html_needs_no_other_file_and_no_network(whole):
    page = whole.html.read_text()
    sources = re.findall(r'src="([^"]{0,30})', page)
    assert len(sources) == len(FIGURES)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"<(script|link|iframe)|https?://|@import|url\(", page)


def test_simulated_runs_are_marked_everywhere_and_show_no_published_value(lab, build):
    files = build(lab.run(simulated=True))
    text, page = files.markdown.read_text(), files.html.read_text()
    assert text.startswith("# SIMULATED")
    assert "0.7500 ± 0.5000" not in text
    assert "Table 9" not in text
    assert "ours \N{MINUS SIGN} paper" not in text
    value = json.loads(files.json.read_text())
    assert value["simulated"] is True
    assert value["paper"] is None
    assert "<title>SIMULATED" in page
    assert "SIMULATED DATA</div>" in page
    # Every table has a caption line that says so, apart from the explanations and the settings.
    for caption in ("This run.", "Files read.", "Run run-42", "Intervals:"):
        assert f"**SIMULATED.** {caption}" in text


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (("fusion_encoder", "both", "test/auroc"), True),
        (("fusion_encoder", "both", "val/auroc"), False),
        (("pretrain_xray", "hernia", "test/auroc"), False),
        (("pretrain_xray", "mean", "test/auroc"), True),
        (("audit", "positive", "recall"), True),
        (("audit", "real_train_positive", "recall"), False),
        (("audit", "membership_private_test_shift", "attack_auroc"), False),
        (("audit", "membership_private", "whitened/attack_auroc"), False),
    ],
)
def test_headline_holds_test_metrics_and_main_arms_only(row, shown):
    assert is_headline(*row) is shown


def test_real_runs_are_not_called_simulated(whole):
    assert "SIMULATED" not in whole.markdown.read_text()


def test_privacy_scope_states_guarantee_and_gaps(lab, build):
    runs = [lab.run(seed, stages=QUICK) for seed in (42, 43)]
    text = build(*runs).markdown.read_text()
    scope = text[text.index("## Privacy scope") : text.index("## Stages")]
    for expected in (
        "ε = 4, δ = 1e-05",
        "replace_one",
        "one record, not one patient",
        "Covered: clipped shard means",
        "**Not covered:** class counts, covariances",
        "FedAvg model parameters",
        "clip radius",
        "| 0 | 0.2500 to 0.5000 | 30 in 2 | 0.1250 to 0.1250 | 40 in 1 |",
        "ε ≤ 8, δ ≤ 2e-05",  # both runs published
    ):
        assert expected in scope


def test_privacy_scope_lists_what_one_budget_paid_for(lab, build):
    part = {"name": "radii", "share": 0.25, "sensitivity": 1.5, "noise_std": 4.5, "num_releases": 28}

    def pay(manifests):
        manifests["release"]["ledger"][0] |= {"adjacency": "replace_one_any_label", "parts": [part]}

    text = build(lab.run(stages=QUICK, edit=pay)).markdown.read_text()
    assert "| radii | 28 | 25 % | 1.5000 | 4.5000 |" in text
    assert "replaced by any other of the same client" in text


def test_a_release_without_noise_is_called_no_privacy(lab, build):
    text = build(lab.run(epsilon=float("inf"), stages=QUICK)).markdown.read_text()
    assert "ε = ∞, no privacy" in text
    assert "Total of one run" not in text


def test_the_sum_over_runs_adds_up_what_each_run_spent(lab, build):
    """DP-SGD reaches a slightly different ε in every run."""

    def spend(epsilon):
        return lambda manifests: manifests["release"]["ledger"][0].update(epsilon=epsilon)

    runs = [lab.run(seed, stages=QUICK, edit=spend(epsilon)) for seed, epsilon in ((42, 3.5), (43, 4.0))]
    text = build(*runs).markdown.read_text()
    assert "ε ≤ 3.5, δ ≤ 1e-05" in text
    assert "the sum would be ε ≤ 7.5, δ ≤ 2e-05" in text


def test_the_total_names_its_adjacency(lab, build):
    def mixed(manifests):
        other = manifests["release"]["ledger"][0] | {"adjacency": "replace_one_any_label", "epsilon": 2.0}
        manifests["release"]["ledger"].append(other)

    text = build(lab.run(stages=QUICK, edit=mixed)).markdown.read_text()
    assert "ε ≤ 6, δ ≤ 2e-05, for the adjacency replace_one (which replace_one_any_label implies)" in text


def test_adjacencies_that_do_not_add_up_have_no_total(lab, build):
    def mixed(manifests):
        other = manifests["release"]["ledger"][0] | {"adjacency": "add_or_remove_one"}
        manifests["release"]["ledger"].append(other)

    text = build(lab.run(stages=QUICK, edit=mixed)).markdown.read_text()
    assert "**No total.**" in text
    assert "ε ≤" not in text


def test_updates_that_left_the_clients_are_not_called_a_comparison(lab, build):
    def leave(manifests):
        entry = {
            "stage": "fusion_encoder", "mechanism": "none", "epsilon": "inf", "delta": 0.0, "adjacency": None,
            "covered": "nothing", "not_covered": ["FedAvg updates"],
        }  # fmt: skip
        manifests["fusion_encoder"]["ledger"].append(entry)

    text = build(lab.run(stages=QUICK, edit=leave)).markdown.read_text()
    assert "**ε = ∞, no privacy**. Without any guarantee: FedAvg updates" in text
    assert "kept as a comparison" not in text
    assert "What has ε = ∞ is not in this sum" in text


@pytest.mark.parametrize("secure", [False, True])
def test_the_source_of_the_noise_is_told_as_it_was(lab, build, secure):
    def draw(manifests):
        manifests["release"]["settings"]["secure_noise"] = secure

    text = build(lab.run(stages=QUICK, edit=draw)).markdown.read_text()
    assert ("whoever knows the seed can remove the noise" in text) is not secure
    assert ("taken from the operating system" in text) is secure


def test_a_run_without_release_claims_nothing(lab, build):
    text = build(lab.run(stages=("clients", "fusion_encoder"))).markdown.read_text()
    assert "**No privacy guarantee.**" in text


def test_partial_run_says_which_stages_and_figures_are_missing(lab, build):
    files = build(lab.run(stages=("clients", "encode")))
    text = files.markdown.read_text()
    assert {path.stem for path in files.figures} == {"partition"}
    assert "**Partial run.**" in text
    assert "`tstr_diffusion`" in text
    assert "Latent space: left out, no stage of kind mix has been run" in text
    assert "ROC curves: left out, no stage of kind tstr_mlp has been run" in text
    assert "No stage that measures anything has been run yet." in text


def test_an_artifact_that_was_deleted_counts_as_missing(lab, build):
    import shutil

    run = lab.run(stages=("clients", "audit"))
    shutil.rmtree(lab.log_dir / "artifacts" / "audit")
    text = build(run).markdown.read_text()
    assert "artifact folder is gone" in text
    assert "Nearest-neighbor distances: left out" in text


def test_a_damaged_artifact_file_is_an_error_that_names_it(lab, build):
    run = lab.run(stages=("clients", "audit"))
    path = next((lab.log_dir / "artifacts" / "audit").glob("*/distances.safetensors"))
    path.write_bytes(b"not safetensors")
    with pytest.raises(ArtifactError, match=r"distances\.safetensors is damaged"):
        build(run)
    assert not (lab.log_dir / "out").exists()


def test_figures_of_an_earlier_report_do_not_survive_and_other_files_do(lab, build):
    build(lab.run(42, stages=("clients", "audit")))
    other = lab.log_dir / "out" / "figures" / "mine.png"
    other.write_bytes(b"x")
    files = build(lab.run(43, stages=("clients",)))
    assert sorted(path.name for path in other.parent.iterdir()) == ["mine.png", "partition.png"]
    assert not list(files.markdown.parent.glob(".*"))


def test_mixed_runs_are_refused_or_listed(lab, build):
    runs = [lab.run(42, stages=QUICK), lab.run(43, epsilon=1.0, stages=QUICK)]
    with pytest.raises(ConfigError, match="more than the seed"):
        build(*runs)
    text = build(*runs, allow_mixed=True).markdown.read_text()
    assert "**Mixed runs.**" in text
    assert "stages.release.epsilon: 4.0 in run-42 (seed 42), 1.0 in run-43 (seed 43)" in text
    assert "The runs do not all have the same ε and δ" in text


def test_raw_html_in_a_value_is_shown_not_interpreted():
    page = render_html("a <script>alert(1)</script> b", title="<t>", images={}, simulated=False)
    assert "<script>" not in page
    assert "<title>&lt;t&gt;</title>" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (0.5, "0.5000"),
        (0.0, "0.0000"),
        (1e-5, "1.0e-05"),
        (12345.6, "12,345.6"),
    ],
)
def test_numbers_are_readable(value, text):
    assert number(value) == text


def test_a_bar_or_line_break_cannot_break_a_table():
    assert table(["a"], [[cell("x|y\nz")]]).splitlines()[-1] == r"| x\|y z |"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "—"), (1.25, "1.2 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")]
)
def test_durations_are_readable(seconds, text):
    assert duration(seconds) == text


def test_a_diverged_run_is_reported_and_its_figures_left_out(lab, build):
    """NaN and infinite values in histories, samples, scores, distances and metrics."""

    def diverge(manifests):
        for manifest in manifests.values():
            for name, content in manifest["_files"].items():
                if name == "history.json":
                    manifest["_files"][name] = [
                        {
                            key: value if key in ("round", "epoch") else float("nan")
                            for key, value in row.items()
                        }
                        for row in content
                    ]
                    continue
                for key, value in content.items():
                    if value.dtype.kind == "f":
                        value = value.copy()
                        value.reshape(-1)[:3] = (float("nan"), float("inf"), -float("inf"))
                        content[key] = value
            for row in manifest["metrics"]:
                row["value"] = float("nan")

    files = build(lab.run(edit=diverge))
    text = files.markdown.read_text()
    for title in ("ROC curves", "Latent space", "Nearest-neighbor distances", "Calibration"):
        assert re.search(rf"{title}: left out, stage \w+ diverged: .* non-finite values", text)
    assert {path.stem for path in files.figures} >= {"partition", "learning_latent_ddpm"}
    json.loads(files.json.read_text())


def test_figures_of_stages_the_experiment_does_not_have_are_not_missed(lab, build):
    stages = {"clients": {"stage": "clients"}, "audit": {"stage": "audit"}}
    config = {"seed": 42, "data": {"split_seed": 7}, "paper": {}, "stages": stages}
    text = build(lab.run(stages=("clients",), config=config)).markdown.read_text()
    assert "Nearest-neighbor distances: left out" in text
    assert "ROC curves: left out" not in text
