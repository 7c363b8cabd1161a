"""The published values of FedMPA: they fit each other, and count only for real E-DAIC under the paper's settings."""

from __future__ import annotations

import copy
import json

import pytest

from federated_run_folders import PAPER_SCHEDULE, SYSTEMS, paper_config, write_federated_run
from fedsynth.composition import compose_config, resolved
from fedsynth.errors import ConfigError
from fedsynth.report import collect_records, load_run
from fedsynth.report.paper import applicable_values, read_paper_values, withheld_conditions

ARMS = (*SYSTEMS, "fedmpa_no_repulsion", "fedmpa_softmax_only", "fedmpa_plain_cross_entropy")
PAPER_ARMS = SYSTEMS[:6]


@pytest.fixture
def run(tmp_path):
    folder = write_federated_run(tmp_path, simulated=False, arms=ARMS, schedule=PAPER_SCHEDULE)
    return load_run(folder, log_dir=tmp_path)


def values() -> dict[tuple[str, str], float]:
    return {(value.arm, value.metric): value.mean for value in read_paper_values({"paper": paper_config()})}


@pytest.mark.parametrize("arm", PAPER_ARMS)
def test_printed_scores_follow_from_printed_attack_and_recall(arm):
    printed = values()
    rho = 1 - 2 * abs(printed[arm, "attack_auroc"] - 0.5)
    assert printed[arm, "privacy_score"] == pytest.approx(rho, abs=1e-9)
    uar = printed[arm, "test/uar"]
    # Printed to two decimals.
    assert printed[arm, "pps"] == pytest.approx(2 * uar * rho / (uar + rho), abs=5e-3)


def test_ablations_lose_what_the_paper_says():
    printed = values()
    uar = {
        arm: value
        for (arm, metric), value in printed.items()
        if metric == "test/uar" and arm.startswith("fedmpa")
    }
    assert uar == {
        "fedmpa": 0.89, "fedmpa_no_repulsion": 0.84, "fedmpa_softmax_only": 0.80, "fedmpa_plain_cross_entropy": 0.74,
    }  # fmt: skip


def test_no_number_stands_twice():
    found = [value.name for value in read_paper_values({"paper": paper_config()})]
    assert len(found) == len(set(found)) == 6 * 6 + 2 + 3


def test_on_real_data_under_the_papers_settings_every_value_counts(run):
    assert len(applicable_values([run.config])) == 41
    assert withheld_conditions(run.config) == []


@pytest.mark.parametrize(
    "path",
    [
        "data.label_rule",
        "stages.clients.num_clients",
        "stages.clients.stage",
        "stages.fedmpa.local_epochs",
        "stages.fedmpa.batch_size",
        "stages.fedmpa.learning_rate",
        "stages.fedmpa.trainer.max_epochs",
        "trainer.limit_train_batches",
        "trainer.fast_dev_run",
    ],
)
def test_another_corpus_or_schedule_withholds_everything_and_says_why(run, path):
    config = copy.deepcopy(run.config)
    inner = config
    *parents, last = path.split(".")
    for name in parents:
        inner = inner[name]
    inner[last] = 7
    assert applicable_values([config]) == {}
    (line,) = withheld_conditions(config)
    assert f"{path} = " in line
    assert "(here 7)" in line


def test_a_system_trained_otherwise_loses_its_own_values_only(run):
    config = copy.deepcopy(run.config)
    config["stages"]["fedprox"]["local_epochs"] = 1
    config["stages"]["score_fedmpa"]["inference"] = "softmax"
    arms = {arm for _, arm, _ in applicable_values([config])}
    assert arms == {
        *PAPER_ARMS,
        "fedmpa_no_repulsion",
        "fedmpa_softmax_only",
        "fedmpa_plain_cross_entropy",
    } - {
        "fedprox",
        "fedmpa",
    }


def test_simulated_runs_have_no_published_value_whatever_their_settings(tmp_path):
    arms = ("fedavg", "fedmpa")
    folder = write_federated_run(tmp_path, simulated=True, arms=arms, schedule=PAPER_SCHEDULE)
    run = load_run(folder, log_dir=tmp_path)
    assert len(applicable_values([run.config])) == 14  # the settings alone would allow them
    assert all(record.paper is None for record in collect_records([run]))


@pytest.mark.parametrize(
    ("low", "high", "outside"),
    [(0.8, 0.886, False), (0.8, 0.884, True), (0.894, 0.9, False), (0.896, 0.9, True)],
)
def test_two_decimals_are_compared_as_two_decimals(tmp_path, low, high, outside):
    """A printed 0.89 is anything from 0.885 to 0.895."""
    folder = write_federated_run(tmp_path, simulated=False, arms=("fedmpa",), schedule=PAPER_SCHEDULE)
    path = tmp_path / "artifacts" / "score_fedmpa" / "42" / "manifest.json"
    manifest = json.loads(path.read_text())
    for row in manifest["metrics"]:
        if row["metric"] == "test/uar":
            row |= {"ci_low": low, "ci_high": high}
    path.write_text(json.dumps(manifest))
    records = collect_records([load_run(folder, log_dir=tmp_path)])
    (record,) = [item for item in records if item.metric == "test/uar"]
    assert record.paper == 0.89
    assert record.paper_is_outside is outside


@pytest.mark.parametrize("decimals", [-1, 2.5, "2", True, 40])
def test_decimals_are_a_small_whole_number(decimals):
    with pytest.raises(ConfigError, match=r"paper\.decimals must be a whole number"):
        read_paper_values({"paper": {**paper_config(), "decimals": decimals}})


def test_the_experiment_under_the_papers_schedule_meets_the_conditions_of_every_value_it_has():
    config = resolved(compose_config(["experiment=fedmpa/paper_schedule"]))
    found = applicable_values([config])
    assert len(found) == 6 * 6 + 2
    assert withheld_conditions(config) == []
    other = resolved(compose_config(["experiment=fedmpa", "data=xray_ecg"]))
    assert applicable_values([other]) == {}


def test_values_are_shown_as_printed():
    (first, *_) = read_paper_values({"paper": paper_config()})
    assert first.text == "0.92"
    assert first.rounding == pytest.approx(0.005)
