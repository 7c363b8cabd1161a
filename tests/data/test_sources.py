from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsynth.data import official, sources
from fedsynth.data.sources import locate, resolve_sources
from fedsynth.errors import ConfigError, DataError


def test_import_loads_no_torch() -> None:
    code = "import sys, fedsynth.data.sources, fedsynth.data.simulated; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["pneumoniamnist", "chestmnist"])
@pytest.mark.parametrize("size", official.MEDMNIST_SIZES)
def test_published_addresses_and_digests_are_those_of_medmnist(name: str, size: int) -> None:
    from medmnist import INFO

    suffix = "" if size == 28 else f"_{size}"
    file = official.official_medmnist(name, size)
    assert (file.url, file.md5) == (INFO[name][f"url{suffix}"], INFO[name][f"MD5{suffix}"])


def test_missing_file_error_lists_places_address_digest_licence_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        locate("pneumoniamnist", tmp_path, download=False, filename=["a.npz", "pneumoniamnist.npz"])
    message = str(caught.value)
    file = official.official_medmnist("pneumoniamnist", 28)
    places = [
        folder / name
        for name in ("a.npz", "pneumoniamnist.npz")
        for folder in (tmp_path / "medmnist", tmp_path)
    ]
    for part in (*map(str, places), file.url, file.md5, "CC BY 4.0", "data.download=true"):
        assert part in message


def test_missing_mitdb_error_lists_place_address_and_digest(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        locate("mitdb", tmp_path, download=False)
    for part in (str(tmp_path / "mitdb"), official.MITDB_URL, official.MITDB_SUMS_SHA256, "ODC-By"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "size"), [("mnist", 28), ("pneumoniamnist", 32)])
def test_unknown_name_or_size_is_a_config_error(tmp_path: Path, name: str, size: int) -> None:
    with pytest.raises(ConfigError):
        locate(name, tmp_path, download=False, size=size)


def test_first_existing_file_name_wins_and_root_is_looked_at(tmp_path: Path, npz_arrays: dict) -> None:
    np.savez(tmp_path / "second.npz", **npz_arrays)
    found = locate("chestmnist", tmp_path, download=False, filename=["first.npz", "second.npz"])
    assert found.path == tmp_path / "second.npz"
    assert found.files[0].known is None


def test_unknown_digest_warns_and_is_marked_but_accepted(
    tmp_path: Path, npz_arrays: dict, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "pneumoniamnist.npz", **npz_arrays)
    with caplog.at_level(logging.WARNING):
        found = locate("pneumoniamnist", tmp_path, download=False)
    assert found.files[0].known is False
    assert official.official_medmnist("pneumoniamnist", 28).md5 in caplog.text


def test_source_digest_changes_with_any_byte_and_not_with_the_directory(
    tmp_path: Path, npz_arrays: dict
) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "pneumoniamnist.npz", **npz_arrays)
    npz_arrays["train_images"][0, 0, 0] ^= 1
    np.savez(tmp_path / "c" / "pneumoniamnist.npz", **npz_arrays)
    a, b, c = (locate("pneumoniamnist", tmp_path / folder, download=False).digest for folder in "abc")
    assert a == b != c


def test_a_shorter_list_of_records_is_another_source(tmp_path: Path, simulated_dir: Path) -> None:
    shutil.copytree(simulated_dir / "mitdb", tmp_path / "mitdb")
    whole = locate("mitdb", tmp_path, download=False).digest
    names = (tmp_path / "mitdb" / "RECORDS").read_text().split()
    (tmp_path / "mitdb" / "RECORDS").write_text("\n".join(names[:-1]) + "\n")
    assert locate("mitdb", tmp_path, download=False).digest != whole


def test_auto_simulates_everything_if_one_set_is_missing(
    tmp_path: Path, npz_arrays: dict, simulated_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "pneumoniamnist.npz", **npz_arrays)
    with caplog.at_level(logging.WARNING):
        found = resolve_sources(
            ["pneumoniamnist", "mitdb"], tmp_path, mode="auto", download=False, simulated_dir=simulated_root
        )
    assert [source.simulated for source in found.values()] == [True, True]
    assert "SIMULATED DATA" in caplog.text
    assert str(tmp_path / "mitdb") in caplog.text


def test_auto_takes_real_data_if_complete(tmp_path: Path, npz_arrays: dict, simulated_root: Path) -> None:
    np.savez(tmp_path / "pneumoniamnist.npz", **npz_arrays)
    found = resolve_sources(
        ["pneumoniamnist"], tmp_path, mode="auto", download=False, simulated_dir=simulated_root
    )
    assert not found["pneumoniamnist"].simulated


def test_auto_falls_back_after_a_failed_download(
    tmp_path: Path, simulated_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise DataError("no network")

    monkeypatch.setattr(sources, "download_file", refuse)
    found = resolve_sources(
        ["chestmnist"], tmp_path, mode="auto", download=True, simulated_dir=simulated_root
    )
    assert found["chestmnist"].simulated


def test_real_mode_refuses_missing_and_simulated_data(tmp_path: Path, simulated_dir: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)pneumoniamnist not found.*mitdb .*not found"):
        resolve_sources(
            ["pneumoniamnist", "mitdb"], tmp_path, mode="real", download=False, simulated_dir=tmp_path
        )
    for name in ("pneumoniamnist", "mitdb"):
        assert locate(name, simulated_dir, download=False).simulated
        with pytest.raises(DataError, match="simulated data"):
            resolve_sources([name], simulated_dir, mode="real", download=False, simulated_dir=tmp_path)


def test_unknown_mode_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fake"):
        resolve_sources([], tmp_path, mode="fake", download=False, simulated_dir=tmp_path)  # type: ignore[arg-type]


def test_damaged_npz_is_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "pneumoniamnist.npz").write_bytes(b"PK\x03\x04 not a zip")
    assert locate("pneumoniamnist", tmp_path, download=False).files[0].known is False


@pytest.mark.real_data
def test_real_mitdb_files_match_physionet_and_changed_ones_are_marked(real_dir: Path, tmp_path: Path) -> None:
    if not (real_dir / "mitdb" / "SHA256SUMS.txt").is_file():
        pytest.skip("SHA256SUMS.txt is absent")
    found = locate("mitdb", real_dir, download=False)
    assert len(found.files) == 145  # RECORDS among them
    assert all(file.known for file in found.files)
    copy = tmp_path / "mitdb"
    copy.mkdir()
    for name in ("SHA256SUMS.txt", "100.hea", "100.atr"):
        shutil.copyfile(real_dir / "mitdb" / name, copy / name)
    with (copy / "100.hea").open("a") as file:
        file.write("# note\n")
    assert {file.name: file.known for file in locate("mitdb", tmp_path, download=False).files} == {
        "100.atr": True,
        "100.hea": False,
    }
