"""X-rays with patients as data sources: found, never downloaded, simulated, and several as one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsynth.data import sources
from fedsynth.data.sources import locate, resolve_sources
from fedsynth.data.xray.source import BY_SOURCE, DATASETS, XRAY, XraySource, combine
from fedsynth.errors import DataError
from fedsynth.run_sources import (
    obtain_sources,
    planner_sources,
    source_names,
    source_records,
    sources_on_disk,
)

NAMES = tuple(BY_SOURCE)


def run_config(folder: Path, *datasets: str, **data: Any) -> dict[str, Any]:
    stages = {f"images_{name}": {"stage": "xray_images", "dataset": name} for name in datasets}
    return {
        "stages": stages,
        "paths": {"log_dir": str(folder / "logs")},
        "data": {"source": "auto", "dir": str(folder / "data"), "download": False, "image_size": 32, **data},
    }


def test_listing_data_sets_loads_no_torch() -> None:
    code = "import sys, fedsynth.data.xray.source; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numbers_of_patients_cannot_meet() -> None:
    numbers = [dataset.number for dataset in DATASETS.values()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_set_is_never_downloaded_and_the_message_says_how_to_make_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "download_file", lambda *_args, **_kwargs: pytest.fail("downloaded"))
    with pytest.raises(DataError) as caught:
        locate(name, tmp_path, download=True)
    message = str(caught.value)
    dataset = BY_SOURCE[name]
    places = [str(tmp_path / part) for file in dataset.files for part in (file, Path(file).name)]
    for part in (*places, "never downloaded", dataset.how_to_make, "data.source=simulated"):
        assert part in message, part


def test_a_set_is_found_below_its_folder_or_beside_it(
    tmp_path: Path, simulated_xray: dict[str, Path]
) -> None:
    file = simulated_xray["kermany"] / "chest" / "kermany_pediatric_64.npz"
    shutil.copy(file, tmp_path)
    assert locate("kermany", tmp_path, download=False).path == tmp_path / file.name


def test_the_table_of_patients_is_part_of_the_source(tmp_path: Path, simulated_xray: dict[str, Path]) -> None:
    folder = shutil.copytree(simulated_xray["pneumoniamnist_patients"], tmp_path / "data")
    before = locate("pneumoniamnist_patients", folder, download=False)
    assert [file.path.suffix for file in before.files] == [".npz", ".csv"]
    with (folder / "medmnist" / "pneumoniamnist_patients.csv").open("a") as table:
        table.write("\n")
    assert locate("pneumoniamnist_patients", folder, download=False).digest != before.digest
    (folder / "medmnist" / "pneumoniamnist_patients.csv").unlink()
    with pytest.raises(DataError, match=r"pneumoniamnist_patients\.csv"):
        locate("pneumoniamnist_patients", folder, download=False)


def test_real_mode_refuses_simulated_files(simulated_xray: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="simulated data"):
        resolve_sources(
            ["kermany"], simulated_xray["kermany"], mode="real", download=False, simulated_dir=tmp_path
        )


def test_a_run_gets_one_source_of_all_sets_its_stages_name(tmp_path: Path) -> None:
    config = run_config(tmp_path, "kermany", "nih1000")
    assert source_names(config) == [XRAY]
    assert sources_on_disk(config)[0] == {}
    found = obtain_sources(config)
    xray = found[XRAY]
    assert isinstance(xray, XraySource)
    assert xray.datasets is not None
    assert set(xray.datasets) == {"kermany", "nih1000"}
    assert xray.simulated
    assert planner_sources(found)[XRAY].private
    assert [record["name"] for record in source_records(xray)] == ["kermany", "nih1000"]
    # What a plan finds afterwards is what the run used.
    assert sources_on_disk(config)[0][XRAY].digest == xray.digest


def test_a_set_that_no_stage_names_changes_no_digest(tmp_path: Path, simulated_xray: dict[str, Path]) -> None:
    kermany, nih = (locate(name, simulated_xray[name], download=False) for name in ("kermany", "nih1000"))
    alone, both = combine({"kermany": kermany}), combine({"kermany": kermany, "nih1000": nih})
    assert alone.digest != both.digest
    assert combine({"kermany": kermany}).digest == alone.digest
    assert obtain_sources(run_config(tmp_path, "kermany"))[XRAY].digest == alone.digest
