"""The whole experiment from the command line: what it leaves, what it repeats, what survives a kill."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from command_line import (
    EXPERIMENT,
    SIMULATED,
    SMALL,
    TINY,
    Whole,
    checkpoint,
    committed,
    finish,
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
from fedsynth.run import Run
from fedsynth.run_sources import sources_on_disk

pytestmark = pytest.mark.slow

STAGES = (
    "clients", "pretrain_xray", "fusion_encoder", "encode", "release", "mix", "latent_ddpm", "synthesize",
    "release_nonprivate", "mix_nonprivate", "tstr_real", "tstr_nonprivate_mixture", "tstr_mixture",
    "tstr_diffusion", "audit",
)  # fmt: skip
# What a change of ε reaches.
DOWNSTREAM = ("release", "mix", "latent_ddpm", "synthesize", "tstr_mixture", "tstr_diffusion", "audit")


# -- a whole run -----------------------------------------------------------------------------------------------


def test_the_whole_experiment_runs_on_simulated_data(whole: Whole) -> None:
    assert printed_statuses(whole.done) == dict.fromkeys(STAGES, "computed")
    (run_dir,) = run_dirs(whole.log_dir)
    for name in ("report.md", "report.html", "report.json", "run.json", "train.0.log", "config/config.yaml"):
        assert (run_dir / name).is_file(), name
    found = record(run_dir)
    assert found["finished"]
    assert {name: stage["status"] for name, stage in found["stages"].items()} == dict.fromkeys(
        STAGES, "computed"
    )
    assert "Traceback" not in whole.done.err


def test_nothing_on_simulated_data_passes_for_a_result(whole: Whole) -> None:
    (run_dir,) = run_dirs(whole.log_dir)
    assert run_dir.name.endswith("-SIMULATED")
    assert list(run_dir.parent.iterdir()) == [run_dir], "Hydra's own folder is to be gone"
    assert record(run_dir)["run_id"] == run_dir.name
    assert whole.done.out.count("SIMULATED DATA") == 2
    report = record(run_dir, "report.json")
    assert report["simulated"] is True
    assert report["title"].startswith("SIMULATED")
    assert report["paper"] is None
    assert all(entry["paper"] is None for entry in report["records"])
    assert (run_dir / "report.md").read_text().startswith("# SIMULATED")
    assert '<div class="simulated">SIMULATED DATA</div>' in (run_dir / "report.html").read_text()
    assert report["figures"]
    for stage in STAGES:
        (folder,) = committed(whole.log_dir, stage)
        assert json.loads((folder / "manifest.json").read_text())["simulated"] is True


def test_the_same_command_computes_nothing_and_reports_the_same_numbers(whole: Whole, tmp_path: Path) -> None:
    before = {stage: committed(whole.log_dir, stage) for stage in STAGES}
    again = run([*SIMULATED, "hydra.run.dir=" + str(tmp_path / "again")], whole.log_dir)
    assert printed_statuses(again) == dict.fromkeys(STAGES, "cached")
    assert {stage: committed(whole.log_dir, stage) for stage in STAGES} == before
    first = record(run_dirs(whole.log_dir)[0], "report.json")
    assert record(tmp_path / "again-SIMULATED", "report.json")["records"] == first["records"]


def test_another_budget_recomputes_what_it_reaches_and_a_damaged_artifact_itself(
    whole: Whole, tmp_path: Path
) -> None:
    log_dir = with_artifacts(whole.log_dir, tmp_path / "logs", *STAGES)
    (encoded,) = committed(log_dir, "encode")
    path = encoded / "latents.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = run([*SIMULATED, "stages.release.epsilon=1"], log_dir)
    anew = {"encode", *DOWNSTREAM}
    assert printed_statuses(done) == {stage: "computed" if stage in anew else "cached" for stage in STAGES}
    assert "does not match its digest" in done.err
    assert len(list(encoded.parent.glob("*.corrupt-*"))) == 1
    assert committed(log_dir, "encode") == [encoded], "the same key, computed anew"
    assert equal(
        tensors(log_dir, "encode", "latents.safetensors"),
        tensors(whole.log_dir, "encode", "latents.safetensors"),
    )
    assert len(committed(log_dir, "release")) == 2


@pytest.mark.real_data
def test_on_real_data_numbers_stand_beside_the_paper_s(data_dir: Path, tmp_path: Path) -> None:
    if not (data_dir / "mitdb").is_dir() or not (data_dir / "medmnist" / "pneumoniamnist.npz").is_file():
        pytest.skip("DATA_DIR lacks mitdb or PneumoniaMNIST")
    real = [EXPERIMENT, "debug=limit", "data.source=real", "data.download=false", *SMALL]
    log_dir = tmp_path / "logs"
    run(real, log_dir, data_dir)
    (run_dir,) = run_dirs(log_dir)
    assert "SIMULATED" not in run_dir.name
    report = record(run_dir, "report.json")
    assert report["simulated"] is False
    names = {(entry["stage"], entry["metric"]) for entry in report["records"]}
    promised = [
        *((stage, f"test/{metric}")
          for stage in ("fusion_encoder", "tstr_real", "tstr_mixture", "tstr_nonprivate_mixture", "tstr_diffusion")
          for metric in ("auroc", "auprc", "f1", "balanced_accuracy", "sensitivity", "specificity", "mcc", "ece")),
        *(("audit", metric) for metric in
          ("precision", "recall", "density", "coverage", "frechet_distance", "rbf_mmd", "nn_ratio", "attack_auroc")),
        ("pretrain_xray", "test/auroc"), ("release", "clip_radius"),
    ]  # fmt: skip
    assert [entry for entry in promised if entry not in names] == []
    assert set(report["records"][0]) >= {
        "stage", "arm", "metric", "paper", "mean", "std", "ci_low", "ci_high", "seeds", "interval", "place",
    }  # fmt: skip
    text = (run_dir / "report.md").read_text()
    # A run cut short is no repetition of the paper's, and the report says why.
    assert all(entry["paper"] is None for entry in report["records"])
    assert "Paper value not shown" in text
    assert "SIMULATED" not in text

    # With a published value that holds for this run too, the column is there.
    value = "{stage: tstr_real, arm: real, metric: test/auroc, mean: 0.9, place: here}"
    run([*real, "~paper.when", f"paper.values=[{value}]"], log_dir, data_dir)
    (newest,) = [path for path in run_dirs(log_dir) if path != run_dir]
    (entry,) = [entry for entry in record(newest, "report.json")["records"] if entry["paper"] is not None]
    assert (entry["stage"], entry["metric"], entry["paper"]) == ("tstr_real", "test/auroc", 0.9)
    headers = [
        line.lower()
        for line in (newest / "report.md").read_text().splitlines()
        if line.startswith("| what |")
    ]
    assert headers
    assert all("paper |" in header and "ours" in header for header in headers)


# -- kills -----------------------------------------------------------------------------------------------------


def test_a_killed_encoder_goes_on_after_its_last_round_and_ends_with_the_same_bits(
    whole: Whole, tmp_path: Path
) -> None:
    log_dir = with_artifacts(whole.log_dir, tmp_path / "logs", "clients", "pretrain_xray")
    words = [*SIMULATED, "only=[fusion_encoder]"]
    (killed,) = signal_at([start(words, log_dir)], checkpoint(log_dir, "fusion_encoder"), signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert committed(log_dir, "fusion_encoder") == []
    done = run(words, log_dir)
    assert "round 2/2" in done.out
    assert "round 1/2" not in done.out
    for file in ("model.safetensors", "scores.safetensors"):
        assert equal(tensors(log_dir, "fusion_encoder", file), tensors(whole.log_dir, "fusion_encoder", file))
    (resumed,), (wanted,) = (committed(path, "fusion_encoder") for path in (log_dir, whole.log_dir))
    assert (resumed / "history.json").read_text() == (wanted / "history.json").read_text()
    assert not list(resumed.parent.glob("*.partial"))


def test_an_interrupted_encoder_says_so_and_keeps_its_checkpoint(whole: Whole, tmp_path: Path) -> None:
    log_dir = with_artifacts(whole.log_dir, tmp_path / "logs", "clients", "pretrain_xray")
    words = [*SIMULATED, "only=[fusion_encoder]"]
    (stopped,) = signal_at([start(words, log_dir)], checkpoint(log_dir, "fusion_encoder"), signal.SIGINT)
    assert stopped.code == 130
    assert "Interrupted. Finished stages are kept; the same command goes on from there." in stopped.message
    assert "Traceback" not in stopped.err
    assert checkpoint(log_dir, "fusion_encoder")()


def test_a_terminated_encoder_says_so_and_is_not_committed(whole: Whole, tmp_path: Path) -> None:
    log_dir = with_artifacts(whole.log_dir, tmp_path / "logs", "clients", "pretrain_xray")
    words = [*SIMULATED, "only=[fusion_encoder]"]
    (stopped,) = signal_at([start(words, log_dir)], checkpoint(log_dir, "fusion_encoder"), signal.SIGTERM)
    assert stopped.code == 143
    assert "Terminated. Finished stages are kept; the same command goes on from there." in stopped.message
    assert "Traceback" not in stopped.err
    assert committed(log_dir, "fusion_encoder") == []


SERVER_SIDE = [
    *SIMULATED, "only=[latent_ddpm,tstr_real]", "schedule.denoiser_epochs=60", "schedule.classifier_epochs=80",
    "evaluation.classifier_seeds=[42,43]",
]  # fmt: skip
BEFORE = ("clients", "pretrain_xray", "fusion_encoder", "encode", "release", "mix")


@pytest.fixture(scope="module")
def killed_denoiser(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LOG_DIR of a run killed while it trained the denoiser."""
    log_dir = with_artifacts(whole.log_dir, tmp_path_factory.mktemp("killed") / "logs", *BEFORE)
    (killed,) = signal_at([start(SERVER_SIDE, log_dir)], checkpoint(log_dir, "latent_ddpm"), signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert committed(log_dir, "latent_ddpm") == []
    return log_dir


def test_killed_denoiser_and_classifiers_end_with_the_same_bits(
    whole: Whole, killed_denoiser: Path, tmp_path: Path
) -> None:
    undisturbed = with_artifacts(whole.log_dir, tmp_path / "undisturbed", *BEFORE)
    meanwhile = start(SERVER_SIDE, undisturbed)
    log_dir = shutil.copytree(killed_denoiser, tmp_path / "killed")
    second_classifier = checkpoint(log_dir, "tstr_real", "classifier-43")
    (killed,) = signal_at([start(SERVER_SIDE, log_dir)], second_classifier, signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert committed(log_dir, "tstr_real") == []
    done = run(SERVER_SIDE, log_dir)
    assert finish(meanwhile).code == 0
    assert printed_statuses(done) == {"latent_ddpm": "cached", "tstr_real": "computed"}
    for stage, file in (("latent_ddpm", "denoiser.safetensors"), ("tstr_real", "scores.safetensors")):
        assert equal(tensors(log_dir, stage, file), tensors(undisturbed, stage, file)), stage


def test_a_checkpoint_of_another_config_is_refused(killed_denoiser: Path, tmp_path: Path) -> None:
    log_dir = shutil.copytree(killed_denoiser, tmp_path / "logs")
    (partial,) = (log_dir / "artifacts" / "latent_ddpm").glob("*.partial")
    other = [*SERVER_SIDE, "diffusion.learning_rate=1.0e-4"]
    key = planned_key(other, log_dir, "latent_ddpm")
    shutil.copytree(partial, partial.with_name(f"{key[:12]}.partial"))
    done = run(other, log_dir, code=1)
    assert "belongs to another configuration of stages.latent_ddpm" in done.message
    assert "Delete it to start this stage again" in done.message
    assert "Traceback" not in done.err


def planned_key(words: list[str], log_dir: Path, stage: str) -> str:
    """The key a command would give to a stage."""
    one = Run(compose_config([*words, f"paths.log_dir={log_dir}", "plan=true"]))
    return next(p.key for p in one.plan(sources_on_disk(one.config)[0]) if p.name == stage)


# -- two at once -----------------------------------------------------------------------------------------------


def test_two_runs_on_one_store_compute_each_artifact_once(tiny_root: Path, tmp_path: Path) -> None:
    words = [EXPERIMENT, "debug=limit", *TINY]
    log_dir = tmp_path / "logs"
    processes = [start(words, log_dir, tiny_root, RUN_ID=name) for name in ("one", "two")]
    first, second = (finish(process) for process in processes)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    both = [printed_statuses(done) for done in (first, second)]
    for name in STAGES:
        assert sorted(done[name] for done in both) == ["cached", "computed"], name
    for stage in STAGES:
        assert len(committed(log_dir, stage)) == 1
        assert not list((log_dir / "artifacts" / stage).glob("*.partial"))
        assert not list((log_dir / "artifacts" / stage).glob("*.corrupt*"))
    reports = [record(path, "report.json")["records"] for path in run_dirs(log_dir)]
    assert len(reports) == 2
    assert reports[0] == reports[1]
