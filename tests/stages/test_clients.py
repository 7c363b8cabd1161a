"""The stage ``clients``: it stores what the data package builds, with seeds that do one thing each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_data import write_data
from tiny_stages import run_stage, settings, stage_context

from fedsynth.data.medmnist import read_medmnist
from fedsynth.data.mitbih import read_beats
from fedsynth.data.paired import PairedClients
from fedsynth.data.pairing import build_pairs
from fedsynth.data.sources import DataSource, locate
from fedsynth.errors import ConfigError


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataSource]:
    root = write_data(tmp_path_factory.mktemp("data"))
    return {name: locate(name, root, download=False) for name in ("pneumoniamnist", "mitdb")}


def made(folder: Path, sources: dict[str, DataSource], **changes: int) -> PairedClients:
    stored = run_stage("clients", settings("clients", **changes), {}, stage_context(folder, sources=sources))
    assert json.loads((stored.path / "data_report.json").read_text()) == stored.manifest["notes"]["report"]
    return PairedClients.from_tensors(
        stored.load("pairs.safetensors"), json.loads((stored.path / "data_report.json").read_text())
    )


def test_the_stored_pairs_are_those_of_build_pairs(tmp_path: Path, sources: dict[str, DataSource]) -> None:
    asked = settings("clients")
    wanted = build_pairs(
        read_medmnist(sources["pneumoniamnist"].path),
        read_beats(sources["mitdb"].path),
        num_clients=asked.num_clients,
        dirichlet_alpha=asked.dirichlet_alpha,
        min_records=asked.min_records_per_client,
        fractions=asked.split_fractions,
        split_seed=asked.split_seed,
        partition_seed=asked.partition_seed,
        pairing_seed=asked.partition_seed,
    )
    found = made(tmp_path / "a", sources)
    for name, tensor in wanted.to_tensors().items():
        assert torch.equal(found.to_tensors()[name], tensor), name
    assert found.report == json.loads(json.dumps(wanted.report))


def test_each_seed_changes_its_own_part_only(tmp_path: Path, sources: dict[str, DataSource]) -> None:
    first = made(tmp_path / "a", sources)
    other_partition = made(tmp_path / "b", sources, partition_seed=7)
    other_split = made(tmp_path / "c", sources, split_seed=7)
    assert other_partition.test.record_id.unique().tolist() == first.test.record_id.unique().tolist()
    assert not torch.equal(other_partition.train.client, first.train.client)
    assert torch.equal(other_split.train.client, first.train.client)
    assert other_split.report["splits"]["test"]["records"] != first.report["splits"]["test"]["records"]


def test_an_impossible_partition_names_the_stage_and_its_settings(
    tmp_path: Path, sources: dict[str, DataSource]
) -> None:
    with pytest.raises(ConfigError, match=r"60 clients .*From stages\.a, where num_clients=60, min_records"):
        made(tmp_path / "a", sources, num_clients=60)
