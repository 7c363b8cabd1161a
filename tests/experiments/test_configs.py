"""Every experiment and every way to shorten or place a run goes from its first stage to its report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import (
    EXPERIMENT,
    TINY,
    printed_statuses,
    record,
    run,
    run_dirs,
)
from image_runs import CPU_GROUPS, SMALL_IMAGES, write_children

from fedsynth.composition import CONFIG_DIR, compose_config
from fedsynth.run import Run

EXPERIMENTS = sorted(
    str(path.relative_to(CONFIG_DIR / "experiment").with_suffix(""))
    for path in (CONFIG_DIR / "experiment").rglob("*.yaml")
)
QUICK = (*TINY, "evaluation.num_bootstrap=20", "evaluation.num_attack_repetitions=2")
# A hundred records cannot pay for moments at ε = 4: the release refuses, as tested where it lives.
PAID = ("privacy.moments.min_class_records=2", "privacy.epsilon=10000")
AFFORDABLE = {
    "feddp_pald/paid": PAID,
    "feddp_pald/paper": (
        PAID[0], *(f"stages.release_{name}.epsilon=10000" for name in ("paid", "paid_eps1", "paid_eps2")),
    ),
}  # fmt: skip
# Systems are compared on the small files of X-rays and ECG; on speech in test_fedmpa_experiment.
COMPARED = ("data=xray_ecg", "federated.batch_size=16")
SPECIAL = {
    # A hundred images are few for 64 clients.
    "fedmpa/clients": (
        "stages.clients_16.num_clients=3", "stages.clients_64.num_clients=4",
        *(f"stages.clients_{number}.image_size=12" for number in (4, 16, 64)),
    ),
    # Noisy prototypes of some batches only are refused: one short round of all of them.
    "fedmpa/dp_prototypes": ("federated.rounds=1", "federated.local_epochs=1"),
}  # fmt: skip
# Weights of Inception are no part of an installation.
IMAGE_WORDS = {
    "pso_secure": ("stages.cross_validation.num_folds=3",),
    "pso_secure/paper": (
        *CPU_GROUPS, "stages.diadm_none.kimg=1", "stages.pseudo_features_diadm.encoder=efficientnet_lite0",
    ),
}  # fmt: skip


def short_words(experiment: str) -> list[str]:
    """What makes an experiment as short as it can be."""
    if experiment.startswith("pso_secure"):
        short = [*IMAGE_WORDS.get(experiment, ()), *SMALL_IMAGES, "data.source=real"]
        return [f"experiment={experiment}", *short, "trainer=cpu"]
    words = [f"experiment={experiment}", *QUICK, *AFFORDABLE.get(experiment, ())]
    if experiment.startswith("fedmpa"):
        words += [*COMPARED, *SPECIAL.get(experiment, ())]
    if experiment == "fedmpa/clients":
        words = [word for word in words if not word.startswith("stages.clients.")]
    return [*words, "trainer=cpu", *(["debug=fdr"] if experiment != "fedmpa/dp_prototypes" else [])]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all of them: what they share is computed once."""
    return tmp_path_factory.mktemp("configs")


@pytest.fixture(scope="module")
def images_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of made-up patterns in the layout of Kermany's X-rays, no simulation to the program."""
    return write_children(tmp_path_factory.mktemp("children"), per_class=120)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_runs_on_one_batch_of_each_stage(
    experiment: str, log_dir: Path, tiny_root: Path, images_root: Path
) -> None:
    words = short_words(experiment)
    run(words, log_dir, images_root if experiment.startswith("pso_secure") else tiny_root, RUN_ID="fdr")
    run_dir = log_dir / "runs" / experiment / "fdr"
    wanted = set(compose_config(words).stages)
    assert set(record(run_dir)["stages"]) == wanted
    report = record(run_dir, "report.json")
    assert {entry["stage"] for entry in report["records"]} >= {
        name for name in wanted if name.startswith(("tstr", "score"))
    }
    assert report["runs"][0]["stages_not_run"] == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("trainer", ["gpu", "h100"])
def test_every_experiment_can_be_placed_on_a_gpu(experiment: str, trainer: str) -> None:
    one = Run(compose_config([f"experiment={experiment}", f"trainer={trainer}"]))
    one.check()
    assert one.config["trainer"]["accelerator"] == "gpu"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_the_h100_settings_run_on_a_cpu(log_dir: Path, tiny_root: Path) -> None:
    # Encoders change their shapes with the masks: to compile those for a CPU takes minutes. Theirs stay as they
    # are here; bf16 and the compiled denoiser and classifiers are what is tried.
    uncompiled = [f"stages.{name}.trainer.compile=false" for name in ("pretrain_xray", "fusion_encoder")]
    done = run(
        [EXPERIMENT, *QUICK, "debug=fdr", "trainer=h100", "trainer.accelerator=cpu", "logger=none",
         *(f"+{word}" for word in uncompiled)],
        log_dir, tiny_root, RUN_ID="h100",
    )  # fmt: skip
    assert printed_statuses(done)["latent_ddpm"] == "computed"
    config = record(log_dir / "runs" / "feddp_pald" / "h100")["config"]
    assert (config["trainer"]["precision"], config["trainer"]["compile"]) == ("bf16-mixed", True)


@pytest.mark.slow
@pytest.mark.parametrize("debug", ["overfit", "profiler"])
def test_other_ways_to_debug_run_the_trained_stages(debug: str, tmp_path: Path, tiny_root: Path) -> None:
    short = ["schedule.pretrain_epochs=2", "federated.rounds=2", "federated.local_epochs=1"]
    words = [EXPERIMENT, *QUICK, *short, f"debug={debug}", "only=[clients,pretrain_xray,fusion_encoder]"]
    done = run(words, tmp_path / "logs", tiny_root)
    assert "round 2/2" in done.out
    assert ("Profiler Report" in done.out + done.err + logged(tmp_path / "logs")) == (debug == "profiler")


def logged(log_dir: Path) -> str:
    return "".join(path.read_text() for folder in run_dirs(log_dir) for path in folder.glob("*.log"))
