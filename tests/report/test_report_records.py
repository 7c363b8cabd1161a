"""What is repeated decides what the spread means; what differs must not be averaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.report.records import ReportRecord, collect_records, student_interval
from fedsynth.report.runs import Run, find_runs, load_run


def load(lab, *paths: Path) -> list[Run]:
    return [load_run(path, log_dir=lab.log_dir) for path in paths]


def pick(records: list[ReportRecord], stage: str, arm: str, metric: str) -> ReportRecord:
    (found,) = [r for r in records if (r.stage, r.arm, r.metric) == (stage, arm, metric)]
    return found


def test_records_carry_exactly_the_promised_keys(lab):
    keys = set(collect_records(load(lab, lab.run()))[0].to_dict())
    promised = {"stage", "arm", "metric", "mean", "std", "ci_low", "ci_high", "seeds", "paper"}
    assert keys == promised | {"interval", "paper_std", "place", "paper_low", "paper_high", "paper_outside"}


def test_one_run_takes_the_classifier_seed_as_unit(lab):
    record = pick(collect_records(load(lab, lab.run(42))), "tstr_real", "real", "test/auroc")
    assert record.mean == pytest.approx(0.9)
    assert record.std == pytest.approx(0.1)  # ddof = 1 of .8, .9, 1.0
    assert record.ci_high - record.mean == pytest.approx(stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3))
    assert record.seeds == 3
    assert "classifier seeds" in record.interval


def test_several_runs_take_the_run_as_unit_and_average_its_seeds(lab):
    runs = load(lab, *[lab.run(seed) for seed in (42, 43, 44)])
    record = pick(collect_records(runs), "tstr_real", "real", "test/auroc")
    # Means of the runs are .90, .91, .92; pooling all nine values would give an SD near .09.
    assert (record.mean, record.std) == (pytest.approx(0.91), pytest.approx(0.01))
    assert record.seeds == 3
    assert "3 runs" in record.interval


def test_one_value_keeps_its_own_interval_and_has_no_sd(lab):
    record = pick(collect_records(load(lab, lab.run(42))), "fusion_encoder", "both", "test/auroc")
    assert record.std is None
    assert (record.mean, record.ci_low, record.ci_high, record.seeds) == (0.5, 0.25, 0.75, 1)


def test_undefined_values_are_left_out_and_said_so(lab):
    alone = pick(collect_records(load(lab, lab.run(42))), "fusion_encoder", "both", "test/mcc")
    assert (alone.mean, alone.std, alone.ci_low, alone.seeds) == (None, None, None, 0)
    runs = load(lab, lab.run(42, run_id="again-42"), lab.run(43), lab.run(44))
    record = pick(collect_records(runs), "fusion_encoder", "both", "test/mcc")
    assert (record.mean, record.seeds) == (0.5, 2)
    assert "1 undefined of 3" in record.interval


def test_nan_in_a_manifest_counts_as_undefined(lab):
    def edit(manifests):
        manifests["audit"]["metrics"][0]["value"] = math.nan

    record = pick(collect_records(load(lab, lab.run(edit=edit))), "audit", "negative", "recall")
    assert record.mean is None


def test_student_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for values in rng.normal(size=(4000, 3)):
        low, high = student_interval(values)
        inside += low <= 0 <= high
    # Binomial SD of the share: sqrt(.95 * .05 / 4000) = .0034.
    assert inside / 4000 == pytest.approx(0.95, abs=0.0137)


def test_student_interval_needs_two_values():
    with pytest.raises(ValueError, match="at least two"):
        student_interval([1.0])


def test_published_values_stand_beside_ours(lab):
    records = collect_records(load(lab, lab.run()))
    record = pick(records, "fusion_encoder", "both", "test/auroc")
    assert (record.paper, record.paper_std, record.place) == (0.75, 0.5, "Table 9")
    assert record.delta == pytest.approx(-0.25)
    assert pick(records, "tstr_diffusion", "dp_diffusion", "test/auroc").paper == 0.625


def test_published_value_is_withheld_when_its_condition_fails(lab):
    records = collect_records(load(lab, lab.run(epsilon=1.0)))
    assert pick(records, "tstr_diffusion", "dp_diffusion", "test/auroc").paper is None
    assert pick(records, "fusion_encoder", "both", "test/auroc").paper == 0.75


def test_simulated_runs_are_never_compared_with_the_paper(lab):
    records = collect_records(load(lab, lab.run(simulated=True)))
    assert {record.paper for record in records} == {None}
    assert {record.place for record in records} == {None}


def test_one_simulated_artifact_makes_the_run_simulated(lab):
    (run,) = load(lab, lab.run(edit=lambda manifests: manifests["mix"].update(simulated=True)))
    assert run.is_simulated
    assert {record.paper for record in collect_records([run])} == {None}


def change_settings(manifests):
    manifests["fusion_encoder"]["key_parts"]["settings"]["learning_rate"] = 0.5


def change_data(manifests):
    manifests["clients"]["data"][0]["sha256"] = "00" * 32


def change_code(manifests):
    manifests["audit"]["key_parts"]["code"] = "code-2"


def change_schedule(manifests):
    manifests["fusion_encoder"]["key_parts"]["trainer"]["max_epochs"] = 9


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"edit": change_settings}, "setting names"),
        ({"edit": change_data}, "data fake_images"),
        ({"edit": change_code}, "stages.audit code"),
        ({"edit": change_schedule}, "trainer.max_epochs: 8"),
        ({"epsilon": 1.0}, "stages.release.epsilon: 4.0"),
        ({"simulated": True}, "SIMULATED data"),
        ({"experiment": "other"}, "experiment: fake"),
    ],
    ids=["settings", "data", "code", "schedule", "epsilon", "simulated", "experiment"],
)
def test_runs_that_differ_in_more_than_the_seed_are_refused(lab, second, named):
    runs = load(lab, lab.run(42), lab.run(43, **second))
    with pytest.raises(ConfigError, match="more than the seed") as refusal:
        collect_records(runs)
    assert named in str(refusal.value)
    assert collect_records(runs, allow_mixed=True)


def test_commits_are_compared_only_without_code_digests(lab):
    first, second = lab.run(42), lab.run(43)
    info = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps(info | {"commit": "other"}))
    assert collect_records(load(lab, first, second))

    def strip(manifests):
        for manifest in manifests.values():
            del manifest["key_parts"]

    third, fourth = lab.run(44, edit=strip), lab.run(45, edit=strip)
    info = json.loads((fourth / "run.json").read_text())
    (fourth / "run.json").write_text(json.dumps(info | {"commit": "other"}))
    with pytest.raises(ConfigError, match="commit: 'c0ffee'"):
        collect_records(load(lab, third, fourth))


def test_two_runs_of_one_seed_are_no_repetitions(lab):
    runs = load(lab, lab.run(42, run_id="a"), lab.run(42, run_id="b"))
    with pytest.raises(ConfigError, match="both have seed 42"):
        collect_records(runs, allow_mixed=True)


def test_no_runs_are_refused():
    with pytest.raises(ConfigError, match="No runs"):
        collect_records([])


def test_a_metric_that_only_one_of_two_runs_has_falls_back_to_its_seeds(lab):
    runs = load(lab, lab.run(42), lab.run(43, stages=("clients", "fusion_encoder")))
    record = pick(collect_records(runs), "tstr_real", "real", "test/auroc")
    assert (record.seeds, record.mean) == (3, pytest.approx(0.9))
    assert "one run" in record.interval


def test_a_folder_without_run_json_is_no_run(tmp_path):
    with pytest.raises(ArtifactError, match=r"run\.json not found"):
        load_run(tmp_path, log_dir=tmp_path)


def test_a_damaged_run_json_is_an_error_by_name_and_skipped_in_a_search(lab):
    good, bad = lab.run(42), lab.run(43)
    (bad / "run.json").write_text("{")
    with pytest.raises(ArtifactError, match="not valid JSON"):
        load_run(bad, log_dir=lab.log_dir)
    assert [run.path for run in find_runs(lab.log_dir)] == [good]


def test_an_artifact_replaced_after_the_run_is_an_error(lab):
    path = lab.run(42)
    manifest = next((lab.log_dir / "artifacts" / "mix").glob("*/manifest.json"))
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"key": "f" * 64}))
    with pytest.raises(ArtifactError, match="replaced after the run"):
        load_run(path, log_dir=lab.log_dir)


def test_find_runs_is_newest_first_and_filters_by_experiment(lab):
    lab.run(42, run_id="old", created="2030-01-01T00:00:00Z")
    lab.run(43, run_id="new", created="2030-01-02T00:00:00Z")
    lab.run(44, run_id="else", experiment="other/nested", created="2030-01-03T00:00:00Z")
    assert [run.run_id for run in find_runs(lab.log_dir)] == ["else", "new", "old"]
    assert [run.run_id for run in find_runs(lab.log_dir, "fake")] == ["new", "old"]
    assert find_runs(lab.log_dir, "nothing") == []


@pytest.mark.parametrize(
    ("interval", "paper", "outside"),
    [
        ((0.4, 0.6), 0.5, False),
        ((0.4, 0.6), 0.7, True),
        ((0.4, 0.6), 0.60004, False),
        ((None, None), 0.5, None),
        ((0.4, 0.6), None, None),
    ],
)
def test_a_published_value_is_outside_when_our_interval_does_not_hold_it(interval, paper, outside):
    record = ReportRecord("s", "a", "m", 0.5, None, *interval, 1, paper)
    assert record.paper_is_outside is outside
    assert record.to_dict()["paper_outside"] is outside
