"""The variance report: the right runs, a complete design, components that are those of the numbers."""

from __future__ import annotations

import itertools
import json

import pytest

from fedsynth.errors import ConfigError
from fedsynth.report.__main__ import main, parse_arguments
from fedsynth.report.runs import find_runs
from fedsynth.report.stored import NotRunError
from fedsynth.report.variance import crossed_design, decompose, variance_report, variance_section


def value(split: int, partition: int, seed: int) -> float:
    """No interaction: the variances of split, partition and seed are 0.02, 0.005 and 0.00125."""
    return 0.5 + 0.2 * split + 0.1 * (partition - 42) + 0.05 * (seed - 42)


def add_run(lab, split, partition, seed, experiment="v", **options):
    def edit(manifests):
        for manifest in manifests.values():
            manifest["metrics"] = []
        settings = {"split_seed": split, "partition_seed": partition}
        manifests["clients"]["settings"] |= settings
        manifests["clients"]["key_parts"]["settings"] |= settings
        number = value(split, partition, seed)
        rows = [{"arm": "both", "metric": "test/auroc", "value": number, "seed": seed}]
        manifests["fusion_encoder"]["metrics"] = rows
        manifests["tstr_real"]["metrics"] = [
            {"arm": "real", "metric": "test/auroc", "value": number + 0.01 * classifier, "seed": classifier}
            for classifier in (1, 2, 3)
        ]
        options.get("change", lambda _: None)(manifests)

    stages = {"clients": {"split_seed": split, "partition_seed": partition}}
    name = options.get("run_id", f"run-{split}-{partition}-{seed}")
    lab.run(
        seed,
        run_id=name,
        experiment=experiment,
        edit=edit,
        config={"seed": seed, "stages": stages},
        stages=("clients", "fusion_encoder", "tstr_real"),
        finished=options.get("finished", True),
        created=options.get("created"),
    )


@pytest.fixture
def crossed(lab):
    for levels in itertools.product((0, 1), (42, 43), (42, 43)):
        add_run(lab, *levels)
    return lab


def test_components_are_those_of_the_planted_effects(crossed):
    design = crossed_design(find_runs(crossed.log_dir, "v"), "v")
    assert design.levels == ((0, 1), (42, 43), (42, 43))
    encoder, classifier = decompose(design)
    assert (encoder.num_values, classifier.num_values) == (8, 24)
    wanted = {"ECG split": 0.2**2 / 2, "partition": 0.1**2 / 2, "initialization": 0.05**2 / 2}
    for response in (encoder, classifier):
        found = {one.name: one.variance for one in response.components}
        for name, variance in wanted.items():
            assert found[name] == pytest.approx(variance, rel=1e-6)
        assert found["residual"] == pytest.approx(0, abs=1e-12)
    found = {one.name: one.variance for one in classifier.components}
    assert found["classifier seed"] == pytest.approx(0.01**2, rel=1e-6)


def test_the_page_is_written_in_three_forms_with_its_picture(crossed, capsys):
    assert main(["variance=v", f"log_dir={crossed.log_dir}"]) == 0
    folder = crossed.log_dir / "reports" / "v"
    text = (folder / "variance.md").read_text()
    assert (
        "8 runs, every combination of data.split_seed: 0, 1; data.partition_seed: 42, 43; seed: 42, 43"
        in text
    )
    assert "| ECG split | 0.1414 (76%) |" in text
    assert (folder / "figures" / "variance.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (folder / "variance.html").read_text()
    data = json.loads((folder / "variance.json").read_text())
    assert data["levels"]["ECG split"] == [0, 1]
    assert "SIMULATED" not in text
    assert "ECG split" in capsys.readouterr().out


def test_a_missing_combination_is_named(crossed):
    add_run(crossed, 2, 42, 42)
    with pytest.raises(
        ConfigError, match=r"3 of 12 combinations .* data.split_seed=2, data.partition_seed=42, seed=43"
    ):
        variance_report(crossed.log_dir, "v")


def test_runs_of_other_code_or_unfinished_ones_do_not_enter(crossed):
    def other_code(manifests):
        manifests["fusion_encoder"]["key_parts"]["code"] = "code-2"

    before = crossed_design(find_runs(crossed.log_dir, "v"), "v")
    add_run(crossed, 0, 42, 42, run_id="older", created="2029-01-01T00:00:00Z", change=other_code)
    add_run(crossed, 5, 42, 42, run_id="killed", finished=False)
    after = crossed_design(find_runs(crossed.log_dir, "v"), "v")
    assert {run.run_id for run in after.runs.values()} == {run.run_id for run in before.runs.values()}


def test_one_varying_factor_is_no_design(lab):
    for seed in (42, 43):
        add_run(lab, 0, 42, seed)
    with pytest.raises(ConfigError, match="two factors with several levels"):
        variance_report(lab.log_dir, "v")


def test_no_runs_say_how_to_make_them(lab):
    with pytest.raises(ConfigError, match="make sweep experiment=v hparams_search=variance"):
        variance_report(lab.log_dir, "v")


def test_variance_stands_alone_on_the_command_line():
    with pytest.raises(ConfigError, match="give it alone"):
        parse_arguments(["variance=v", "last=2"])


def test_the_paper_s_report_holds_the_decomposition_of_its_variance_runs(lab):
    assert variance_section(lab.log_dir, "p/paper", False) is None
    for levels in itertools.product((0, 1), (42, 43), (42, 43)):
        add_run(lab, *levels, experiment="p/variance")
    section = variance_section(lab.log_dir, "p/paper", False)
    assert section is not None
    assert "| ECG split | 0.1414 (76%) |" in section.text
    assert [item.name for item in section.figures] == ["variance"]
    assert variance_section(lab.log_dir, "p", False) is None
    assert variance_section(lab.log_dir, "p/paper", True) is None  # simulated runs are other data
    add_run(lab, 2, 42, 42, experiment="p/variance")
    with pytest.raises(NotRunError, match="3 of 12 combinations"):
        variance_section(lab.log_dir, "p/paper", False)
