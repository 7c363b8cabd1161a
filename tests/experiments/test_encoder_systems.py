"""The other encoder systems as whole runs: pooled pairs shared by two processes, more clients than ECG records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import EXPERIMENT, TINY, committed, run, run_ranks, tensors

ENCODER = "only=[clients,pretrain_xray,fusion_encoder]"


def history(log_dir: Path) -> list[dict[str, Any]]:
    (folder,) = committed(log_dir, "fusion_encoder")
    rows: list[dict[str, Any]] = json.loads((folder / "history.json").read_text())
    return rows


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.parametrize("system", [("model=gated_fusion",), ("model=ecg_only", "model.missing=skip")])
def test_two_processes_share_the_pooled_pairs(
    system: tuple[str, ...], tmp_path: Path, tiny_root: Path
) -> None:
    words = [
        "experiment=feddp_pald/centralized", "debug=limit", *TINY, *system, ENCODER, "federated.batch_size=4",
    ]  # fmt: skip
    run_ranks([*words, "trainer.num_threads=1"], tmp_path / "two", tiny_root)
    run([*words, "trainer=cpu", "trainer.num_threads=1"], tmp_path / "one", tiny_root)
    two, one = history(tmp_path / "two"), history(tmp_path / "one")
    assert [row["epoch"] for row in two] == [row["epoch"] for row in one] == [0, 1]
    weights = tensors(tmp_path / "two", "fusion_encoder", "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert weights.keys() == tensors(tmp_path / "one", "fusion_encoder", "model.safetensors").keys()


@pytest.mark.slow
def test_more_clients_than_ecg_records_borrow_and_train(tmp_path: Path, tiny_root: Path) -> None:
    words = [
        EXPERIMENT,
        "debug=limit",
        *TINY,
        "data.num_clients=12",
        "data.min_records_per_client=2",
        ENCODER,
    ]
    run([*words, "trainer.num_threads=1"], tmp_path, tiny_root)
    (folder,) = committed(tmp_path, "clients")
    report = json.loads((folder / "data_report.json").read_text())
    without = [k for k, client in enumerate(report["clients"]) if not client["records"]]
    assert without
    assert {entry["client"] for entry in report["borrowed_beats"]} >= set(without)
    assert set(tensors(tmp_path, "clients", "pairs.safetensors")["train/client"].tolist()) == set(range(12))


def test_too_many_clients_are_refused_with_the_keys_to_change(tmp_path: Path, tiny_root: Path) -> None:
    words = [EXPERIMENT, *TINY, "data.num_clients=999", "only=[clients]"]
    done = run(words, tmp_path, tiny_root, code=1)
    assert "cannot give 999 clients min_records=4" in done.message
    assert "num_clients=999, min_records_per_client=4" in done.message
