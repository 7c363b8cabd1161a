"""FedMPA and its baselines from corpus to report: on a small simulated corpus and on small real files."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import (
    NETWORK,
    Finished,
    checkpoint,
    committed,
    printed_statuses,
    record,
    run,
    run_dirs,
    signal_at,
    start,
    tensors,
    with_artifacts,
)
from tiny_stages import equal

from fedsynth.composition import compose_config
from fedsynth.data.edaic.layout import SIMULATED_MARK
from fedsynth.data.edaic.simulated import write_simulated_corpus

pytestmark = pytest.mark.slow

EXPERIMENT = "experiment=fedmpa"
# Sizes that change no path through the code; one thread, where results repeat exactly.
SPEECH = (
    EXPERIMENT, "debug=limit", "federated.rounds=3", "trainer.num_threads=1", "data.num_clients=2",
    "data.min_depressed_per_client=1", "speech_model.hidden_dim=16", "speech_model.embedding_dim=8",
)  # fmt: skip
PAIRED = (
    EXPERIMENT, "data=xray_ecg", "data.source=real", "data.download=false", "data.num_clients=2",
    "data.min_records_per_client=4", "stages.clients.image_size=12", "debug=limit",
    "trainer.num_threads=1", *NETWORK,
)  # fmt: skip
STAGES = tuple(compose_config([EXPERIMENT]).stages)
SYSTEMS = tuple(name.removeprefix("score_") for name in STAGES if name.startswith("score_"))
METRICS = ("test/uar", "test/accuracy", "test/f1", "attack_auroc", "privacy_score", "pps", "num_models")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 simulated people in the layout of E-DAIC, with the marker that says so."""
    return write_simulated_corpus(tmp_path_factory.mktemp("corpus"), seed=0, scale=0.01)


@dataclass(frozen=True)
class Speech:
    """The finished experiment on the small corpus."""

    log_dir: Path
    done: Finished

    @property
    def run_dir(self) -> Path:
        return run_dirs(self.log_dir)[0]


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Speech:
    log_dir = tmp_path_factory.mktemp("fedmpa")
    return Speech(log_dir, run(SPEECH, log_dir, EDAIC_ROOT=str(corpus)))


def found(run_dir: Path) -> dict[tuple[str, str], float]:
    """Mean of every metric by stage and name."""
    report = record(run_dir, "report.json")
    return {(entry["stage"], entry["metric"]): entry["mean"] for entry in report["records"]}


def check_scores(run_dir: Path) -> None:
    """Every system has every metric of the paper, and PPS is the harmonic mean of its parts."""
    values = found(run_dir)
    for system in SYSTEMS:
        score = {name: values[(f"score_{system}", name)] for name in METRICS}
        assert 0 <= score["test/uar"] <= 1
        assert score["privacy_score"] == pytest.approx(1 - 2 * abs(score["attack_auroc"] - 0.5))
        uar, privacy = score["test/uar"], score["privacy_score"]
        wanted = 2 * uar * privacy / (uar + privacy) if uar + privacy else 0.0
        assert score["pps"] == pytest.approx(wanted)
        assert score["num_models"] == (2 if system in ("fedproto", "local") else 1)
    assert ("score_fedmpa", "test/rerouted_share") in values
    assert ("score_fedavg", "test/rerouted_share") not in values
    assert any(stage == "contrast_fedmpa" for stage, _ in values)


def test_every_system_is_trained_scored_and_reported(speech: Speech) -> None:
    assert printed_statuses(speech.done) == dict.fromkeys(STAGES, "computed")
    check_scores(speech.run_dir)
    report = record(speech.run_dir, "report.json")
    assert report["figures"]
    assert report["runs"][0]["stages_not_run"] == []
    text = (speech.run_dir / "report.md").read_text()
    for title in ("FedMPA", "FedProto", "FedGPD", "FedProx", "FedAvg"):
        assert title in text


def test_nobody_can_take_the_simulated_corpus_for_patients(speech: Speech) -> None:
    assert speech.run_dir.name.endswith("-SIMULATED")
    assert record(speech.run_dir)["simulated"] is True
    report = record(speech.run_dir, "report.json")
    assert report["simulated"] is True
    assert all(entry["paper"] is None for entry in report["records"]), "no published number beside these"
    assert (speech.run_dir / "report.md").read_text().startswith("# SIMULATED")
    assert '<div class="simulated">SIMULATED DATA</div>' in (speech.run_dir / "report.html").read_text()
    assert "SIMULATED fedmpa" in speech.done.out
    assert "SIMULATED DATA: no result of this run says anything about patients." in speech.done.message
    for stage in STAGES:
        (folder,) = committed(speech.log_dir, stage)
        assert record(folder, "manifest.json")["simulated"] is True, stage


def test_the_same_command_computes_nothing_and_reports_the_same_numbers(
    speech: Speech, corpus: Path, tmp_path: Path
) -> None:
    words = [*SPEECH, f"hydra.run.dir={tmp_path / 'again'}"]
    again = run(words, speech.log_dir, EDAIC_ROOT=str(corpus))
    assert printed_statuses(again) == dict.fromkeys(STAGES, "cached")
    first = record(speech.run_dir, "report.json")["records"]
    assert record(tmp_path / "again-SIMULATED", "report.json")["records"] == first


def test_a_run_killed_in_the_middle_goes_on_and_reports_the_same_numbers(
    speech: Speech, corpus: Path, tmp_path: Path
) -> None:
    middle = STAGES.index("fedmpa")
    before = STAGES[: STAGES.index("score_fedproto")]
    log_dir = with_artifacts(speech.log_dir, tmp_path / "logs", *before)
    variables = {"EDAIC_ROOT": str(corpus)}
    process = start(SPEECH, log_dir, **variables)
    (killed,) = signal_at([process], checkpoint(log_dir, "fedmpa"), signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert committed(log_dir, "fedmpa") == []

    done = run(SPEECH, log_dir, **variables)
    assert printed_statuses(done) == {
        stage: "cached" if STAGES.index(stage) < middle else "computed" for stage in STAGES
    }
    training = done.out.partition("running fedmpa ")[2].partition("computed fedmpa ")[0]
    assert "round 3/3" in training
    assert "round 1/3" not in training, "it went on after its last round"
    for file in (
        "model.safetensors",
        "prototypes.safetensors",
        "uploads.safetensors",
        "client_models.safetensors",
    ):
        assert equal(tensors(log_dir, "fedmpa", file), tensors(speech.log_dir, "fedmpa", file)), file
    finished = [path for path in run_dirs(log_dir) if (path / "report.json").is_file()]
    (report,) = (record(path, "report.json") for path in finished)
    assert report["records"] == record(speech.run_dir, "report.json")["records"]


def test_on_x_rays_and_ecg_the_same_systems_are_compared(tmp_path: Path, tiny_root: Path) -> None:
    done = run(PAIRED, tmp_path / "logs", tiny_root)
    assert printed_statuses(done) == dict.fromkeys(STAGES, "computed")
    (run_dir,) = run_dirs(tmp_path / "logs")
    check_scores(run_dir)
    assert record(run_dir)["simulated"] is False
    for text in (run_dir.name, (run_dir / "report.md").read_text(), done.out, done.message):
        assert "SIMULATED" not in text


def test_a_corpus_without_the_marker_is_not_called_simulated(corpus: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    (root / SIMULATED_MARK).unlink()
    done = run([*SPEECH, "data.source=real", "only=[clients]"], tmp_path / "logs", EDAIC_ROOT=str(root))
    (run_dir,) = run_dirs(tmp_path / "logs")
    assert record(run_dir)["simulated"] is False
    assert "SIMULATED" not in run_dir.name + done.out + done.message


@pytest.mark.parametrize(
    ("root", "words", "says"),
    [
        ("here", ["data.source=real"], "holds simulated data; point EDAIC_ROOT (data.edaic_root) at the real"),
        ("nowhere", [], "is not a folder. Set EDAIC_ROOT (data.edaic_root)"),
        ("here", ["data.num_clients=9"], "(From stages.clients, where num_clients=9, min_depressed_per_client=1"),
    ],
)  # fmt: skip
def test_a_corpus_that_does_not_fit_is_one_message(
    root: str, words: list[str], says: str, corpus: Path, tmp_path: Path
) -> None:
    path = corpus if root == "here" else tmp_path / root
    done = run([*SPEECH, *words], tmp_path / "logs", code=1, EDAIC_ROOT=str(path))
    assert says in done.message
    assert "Traceback" not in done.err
