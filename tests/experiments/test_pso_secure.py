"""PSO-secure sharing from X-rays to report: real and simulated images, a kill in mid-sampling, bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import (
    Finished,
    Whole,
    committed,
    environment,
    printed_statuses,
    record,
    run,
    run_dirs,
    signal_at,
    start,
    tensors,
    with_artifacts,
)
from image_runs import SMALL_IMAGES, write_children
from safetensors.torch import load_file
from tiny_stages import equal

from fedsynth.composition import compose_config

pytestmark = pytest.mark.slow

EXPERIMENT = "experiment=pso_secure"
WORDS = (EXPERIMENT, *SMALL_IMAGES, "stages.cross_validation.num_folds=3")
SIMULATED = (*WORDS, "data.source=simulated")
STAGES = tuple(compose_config([EXPERIMENT]).stages)
FILTERED, UNFILTERED = "diadm_features_filtered", "diadm_features_unfiltered"
SAMPLING = "synthesize_images"
#: What the identity filter, the audit and the classifiers must have said in every run.
METRICS = {
    "tstr_real": ("test/auroc",),
    f"tstr_{FILTERED}": ("test/auroc",),
    "reidentifier": ("test/auroc",),
    FILTERED: ("kept", "dropped", "refilled", "rounds", "flagged/normal", "all_flagged/virus"),
    f"audit_{FILTERED}": ("frechet/train", "irs/inf_a", "self_retrieval/rate", "reid/source_rate"),
    "auroc_gap": ("gap",),
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The whole experiment, finished once, on simulated X-rays."""
    log_dir = tmp_path_factory.mktemp("simulated")
    return Whole(log_dir, run(SIMULATED, log_dir))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Whole:
    """The whole experiment, finished once, on a few of Kermany's X-rays."""
    log_dir = tmp_path_factory.mktemp("real")
    return Whole(log_dir, run([*WORDS, "data.source=real"], log_dir, data_dir))


def check_report(whole: Whole) -> None:
    """Every stage is done, every number is there and in its bounds, and no published number stands beside them."""
    assert printed_statuses(whole.done) == dict.fromkeys(STAGES, "computed")
    (run_dir,) = run_dirs(whole.log_dir)
    report = record(run_dir, "report.json")
    found = {(entry["stage"], entry["metric"]): entry["mean"] for entry in report["records"]}
    for stage, metrics in METRICS.items():
        for metric in metrics:
            assert torch.isfinite(torch.tensor(found[stage, metric])), (stage, metric)
    for (stage, metric), value in found.items():
        assert metric != "test/auroc" or 0 <= value <= 1, stage
    assert all(entry["paper"] is None for entry in report["records"]), (
        "other data and networks than the paper's"
    )
    assert report["runs"][0]["stages_not_run"] == []
    text = (run_dir / "report.md").read_text()
    assert "singl" in text.lower()
    assert "is PSO-secure" not in text


def check_released(log_dir: Path) -> None:
    """What is released is what the filter allowed: as counted, labelled as its source, and not the source itself."""
    (folder,) = committed(log_dir, FILTERED)
    notes = record(folder, "manifest.json")["notes"]
    released, private, origin = (
        tensors(log_dir, FILTERED, "images.safetensors"),
        tensors(log_dir, FILTERED, "private/images.safetensors"),
        tensors(log_dir, "images", "images.safetensors"),
    )
    assert "train.source" not in released, "whose image it was made of stays with the client"
    source = private["train.source"]
    assert len(source) == sum(notes["counts"].values()) > 0
    assert torch.equal(released["train.label"], origin["train.label"][source])
    pairs = zip(released["train.image"], origin["train.image"][source], strict=True)
    assert not any(torch.equal(made, true) for made, true in pairs)
    candidates = set()
    for path in sorted(committed(log_dir, SAMPLING)[0].glob("candidates-*.safetensors")):
        candidates |= set(load_file(path)["source"].tolist())
    assert set(source.tolist()) <= candidates
    assert len(candidates) == 24


@pytest.mark.real_data
def test_real_x_rays_go_from_file_to_report(real: Whole) -> None:
    check_report(real)
    check_released(real.log_dir)
    (run_dir,) = run_dirs(real.log_dir)
    assert record(run_dir)["simulated"] is False
    for text in (run_dir.name, (run_dir / "report.md").read_text(), real.done.out, real.done.message):
        assert "SIMULATED" not in text


def test_simulated_x_rays_go_the_same_way_and_nobody_can_take_them_for_real(simulated: Whole) -> None:
    check_report(simulated)
    check_released(simulated.log_dir)
    (run_dir,) = run_dirs(simulated.log_dir)
    assert run_dir.name.endswith("-SIMULATED")
    assert record(run_dir)["simulated"] is True
    assert (run_dir / "report.md").read_text().startswith("# SIMULATED")
    assert '<div class="simulated">SIMULATED DATA</div>' in (run_dir / "report.html").read_text()
    assert "SIMULATED pso_secure" in simulated.done.out
    assert "SIMULATED DATA: no real records" in " ".join(simulated.done.out.split()) + simulated.done.message
    for stage in STAGES:
        assert record(committed(simulated.log_dir, stage)[0], "manifest.json")["simulated"] is True, stage


def test_the_same_command_computes_nothing_and_reports_the_same_numbers(
    simulated: Whole, tmp_path: Path
) -> None:
    again = run([*SIMULATED, f"hydra.run.dir={tmp_path / 'again'}"], simulated.log_dir)
    assert printed_statuses(again) == dict.fromkeys(STAGES, "cached")
    first = next(path for path in run_dirs(simulated.log_dir) if path.parent.name == "pso_secure")
    wanted = record(first, "report.json")["records"]
    assert record(tmp_path / "again-SIMULATED", "report.json")["records"] == wanted


def test_sampling_killed_in_the_middle_goes_on_with_the_shards_that_are_missing(
    simulated: Whole, tmp_path: Path
) -> None:
    before = STAGES[: STAGES.index(SAMPLING)]
    log_dir = with_artifacts(simulated.log_dir, tmp_path / "logs", *before)
    shards = f"artifacts/{SAMPLING}/*.partial/pieces/candidates-*.safetensors"
    words = [*SIMULATED, f"only=[{SAMPLING},{FILTERED}]"]

    process = start(words, log_dir)
    (killed,) = signal_at([process], lambda: len(list(log_dir.glob(shards))) >= 2, signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert committed(log_dir, SAMPLING) == []
    made = {path.name: path.stat() for path in log_dir.glob(shards)}
    assert 2 <= len(made) < 6, "the kill came in the middle"

    run(words, log_dir)
    (folder,) = committed(log_dir, SAMPLING)
    for name, stat in made.items():
        now = (folder / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns), f"{name} was made again"
    (unbroken,) = committed(simulated.log_dir, SAMPLING)
    names = sorted(path.name for path in unbroken.glob("candidates-*.safetensors"))
    assert [path.name for path in sorted(folder.glob("candidates-*.safetensors"))] == names
    assert len(names) == 6
    for name in names:
        assert equal(load_file(folder / name), load_file(unbroken / name)), name
    ours, theirs = (tensors(one, FILTERED, "images.safetensors") for one in (log_dir, simulated.log_dir))
    assert equal(ours, theirs)


# -- bad input -----------------------------------------------------------------------------------------------

TO_RANKED = f"only=[{FILTERED}]"


def nothing(folder: Path) -> None:
    """Simulated data, as of the finished run."""


def broken_weights(folder: Path) -> None:
    """A file that is there, but holds another network."""
    torch.save({"state_dict": {"layer.weight": torch.zeros(2, 2)}}, folder / "wrong.pth")


def one_image_a_child(folder: Path) -> None:
    write_children(folder, images=1, per_class=60)


def without_virus(folder: Path) -> None:
    write_children(folder, ("normal", "bacteria"))


# What is laid into a folder, words beside the small run's, what the message must name, and the stages that must be
# finished when it ends. {folder} is that folder.
CASES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "weights not named": (
        nothing, ("image_encoder=swav",),
        ("stages.pseudo_features.weights is null", "image_encoder.weights", "image_encoder.allow_download=true"), (),
    ),
    "weights absent": (
        nothing, ("image_encoder=swav", "image_encoder.weights={folder}/gone.pth"),
        ("image_encoder.weights", "there is none at", "gone.pth"), (),
    ),
    "weights of another network": (
        broken_weights, ("image_encoder=swav", "image_encoder.weights={folder}/wrong.pth", "only=[pseudo_features]"),
        ("stages.pseudo_features.weights holds weights of another architecture than ResNet-50",), ("images",),
    ),
    "one image per patient": (
        one_image_a_child, ("data.source=real", "only=[images,reidentifier]"),
        ("stages.reidentifier", "reidentification.pairs=augmentation"), ("images",),
    ),
    "a class missing": (
        without_virus, ("data.source=real", "only=[images]"), ("kermany_pediatric_64.npz", "virus"), (),
    ),
    "image size the codec cannot divide": (
        nothing, ("data.image_size=17", "only=[images,image_codec]"), ("17", "codec.factor=2", "data.image_size"), (),
    ),
    "more sources than images": (
        nothing, ("image_sampler.num_sources=5000", f"only=[{SAMPLING}]"),
        ("num_sources must be ≤", "5000", "image_sampler.num_sources"), ("images", "diadm"),
    ),
    "every candidate flagged": (
        nothing, ("selection.threshold_rule=fixed", "selection.threshold_value=0", TO_RANKED),
        (FILTERED, "flagged", "selection."), ("images", "diadm", SAMPLING),
    ),
}  # fmt: skip

# One process for all cases: torch is imported once.
DRIVER = """
import contextlib, io, json, os, sys
from fedsynth.train import main
os.environ.pop("SWAV_WEIGHTS", None)
results = {}
for name, (words, log_dir, data_dir) in json.loads(sys.argv[1]).items():
    os.environ.update(LOG_DIR=log_dir, DATA_DIR=data_dir)
    sys.argv = ["train", *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    results[name] = (code, out.getvalue(), err.getvalue())
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def outcomes(simulated: Whole, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Finished]]:
    root = tmp_path_factory.mktemp("bad-input")
    runs, log_dirs = {}, {}
    for name, (spoil, words, _, _) in CASES.items():
        folder = root / name
        folder.mkdir()
        spoil(folder)
        log_dirs[name] = with_artifacts(simulated.log_dir, folder / "logs", *STAGES[: STAGES.index(FILTERED)])
        typed = [*SIMULATED, *(word.format(folder=folder) for word in words)]
        runs[name] = (typed, str(log_dirs[name]), str(folder))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(runs)],
        env=environment(root), cwd=root, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    return {name: (log_dirs[name], Finished(*result)) for name, result in results.items()}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_ends_with_one_message_and_finished_stages_are_kept(
    name: str, outcomes: dict[str, tuple[Path, Finished]]
) -> None:
    log_dir, done = outcomes[name]
    _, _, parts, kept = CASES[name]
    assert done.code == 1, done.out + done.err
    assert done.err.count("─ fedsynth ─") == 1, done.err
    assert [part for part in parts if part not in done.message] == [], done.message
    assert "Traceback" not in done.err + done.out
    for stage in kept:
        assert committed(log_dir, stage), stage
    assert not list(log_dir.glob("artifacts/*/*.partial/checkpoints/*")), "refused before any training"
