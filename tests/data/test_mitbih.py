from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import wfdb

from fedsynth.data.mitbih import normalize_beats, read_beats
from fedsynth.errors import ConfigError, DataError

BEAT_AT = np.array([50, 96, 400, 700, 900, 1040, 1041])
SYMBOLS = ("N", "N", "V", "+", "L", "N", "A")


def _write_record(
    directory: Path,
    leads: tuple[str, str] = ("V1", "MLII"),
    fs: int = 360,
    symbols: tuple[str, ...] = SYMBOLS,
) -> None:
    """1200 samples of two leads; the second is a ramp, so every window is known."""
    directory.mkdir(exist_ok=True)
    signal = np.stack([np.zeros(1200), (np.arange(1200) - 600) / 200], axis=1)
    wfdb.wrsamp(
        "100",
        fs=fs,
        units=["mV", "mV"],
        sig_name=list(leads),
        p_signal=signal,
        fmt=["212", "212"],
        adc_gain=[200, 200],
        baseline=[0, 0],
        write_dir=str(directory),
    )
    wfdb.wrann("100", "atr", BEAT_AT, symbol=list(symbols), write_dir=str(directory))


def test_windows_are_the_samples_around_the_annotation(tmp_path: Path) -> None:
    _write_record(tmp_path)
    beats = read_beats(tmp_path)
    assert beats.sample.tolist() == [96, 400, 900, 1040]  # 50 starts too early, 1041 ends too late
    expected = (beats.sample[:, None] + np.arange(-96, 160) - 600) / 200
    np.testing.assert_allclose(beats.window, expected, atol=1e-6)
    assert beats.dropped == {"invalid samples": 0, "not a beat": 1, "window leaves the record": 2}
    assert beats.record.tolist() == [100] * 4


@pytest.mark.parametrize(("rule", "labels"), [("n_vs_rest", [0, 1, 1, 0]), ("aami", [0, 1, 0, 0])])
def test_label_rules_differ_on_bundle_branch_beats(tmp_path: Path, rule: str, labels: list[int]) -> None:
    _write_record(tmp_path)
    assert read_beats(tmp_path, label_rule=rule).label.tolist() == labels  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "labels"), [("n_vs_rest", [1, 1, 1, 1]), ("aami", [0, 0, 0, 1])])
def test_label_rules_differ_on_escape_beats(tmp_path: Path, rule: str, labels: list[int]) -> None:
    _write_record(tmp_path, symbols=("N", "e", "j", "+", "R", "J", "N"))
    assert read_beats(tmp_path, label_rule=rule).label.tolist() == labels  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("leads", "chosen"),
    [(("V1", "MLII"), "MLII"), (("V1", "MLI"), "MLI"), (("MLI", "MLII"), "MLII"), (("V5", "V2"), "V5")],
)
def test_channel_preference_is_mlii_then_mli_then_first(
    tmp_path: Path, leads: tuple[str, str], chosen: str
) -> None:
    _write_record(tmp_path, leads=leads)
    beats = read_beats(tmp_path)
    assert beats.channel == {100: chosen}
    assert bool(beats.window.any()) == (leads.index(chosen) == 1)  # the first lead is flat


def test_every_beat_is_kept_or_counted(simulated_dir: Path) -> None:
    beats = read_beats(simulated_dir / "mitdb")
    annotations = sum(
        len(wfdb.rdann(str(p.with_suffix("")), "atr").sample) for p in (simulated_dir / "mitdb").glob("*.atr")
    )
    assert len(beats.record) + sum(beats.dropped.values()) == annotations


def test_invalid_samples_drop_the_beat(tmp_path: Path) -> None:
    _write_record(tmp_path)
    signal = np.stack([np.zeros(1200), np.where(np.arange(1200) == 420, np.nan, 0.1)], axis=1)
    wfdb.wrsamp(
        "100",
        fs=360,
        units=["mV"] * 2,
        sig_name=["V1", "MLII"],
        p_signal=signal,
        fmt=["212"] * 2,
        adc_gain=[200, 200],
        baseline=[0, 0],
        write_dir=str(tmp_path),
    )
    beats = read_beats(tmp_path)
    assert beats.sample.tolist() == [96, 900, 1040]
    assert beats.dropped["invalid samples"] == 1


@pytest.mark.parametrize("extension", ["hea", "dat", "atr"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_missing_or_cut_file_is_a_data_error_naming_it(tmp_path: Path, extension: str, damage: str) -> None:
    _write_record(tmp_path)
    (tmp_path / "RECORDS").write_text("100\n")
    path = tmp_path / f"100.{extension}"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: (len(content) // 4) * 2] if damage == "cut" else b"")
    with pytest.raises(DataError, match=f"100.{extension}"):
        read_beats(tmp_path)


def test_one_sample_cut_from_the_signal_is_noticed(tmp_path: Path) -> None:
    _write_record(tmp_path)
    path = tmp_path / "100.dat"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"100\.dat is cut short"):
        read_beats(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"100\n100\n", "lists 100 more than once"), (b"100\n0100\n", "100"), (b"100\n\xff\n", "UTF-8")],
)
def test_records_named_twice_or_unreadable_are_a_data_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    _write_record(tmp_path)
    (tmp_path / "RECORDS").write_bytes(content)
    with pytest.raises(DataError, match=f"RECORDS.*{message}"):
        read_beats(tmp_path)


@pytest.mark.parametrize(
    ("sample", "message"),
    [([400, 300], "time order.*sample 300"), ([400, 1200], "sample 1200.*1200 samples")],
)
def test_annotations_out_of_order_or_beyond_the_record_are_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: list[int], message: str
) -> None:
    _write_record(tmp_path)
    found = wfdb.Annotation("100", "atr", np.array(sample), symbol=["N"] * len(sample))
    monkeypatch.setattr(wfdb, "rdann", lambda *arguments, **options: found)
    with pytest.raises(DataError, match=rf"100\.atr.*{message}"):
        read_beats(tmp_path)


def test_changed_signal_fails_the_header_checksum(tmp_path: Path) -> None:
    _write_record(tmp_path)
    content = bytearray((tmp_path / "100.dat").read_bytes())
    content[1502] ^= 0x10
    (tmp_path / "100.dat").write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        read_beats(tmp_path)


@pytest.mark.parametrize("header", ["", "garbage", "100 2 360\n", "100 2 360 1200\n100.dat 212\n"])
def test_garbage_header_is_a_data_error(tmp_path: Path, header: str) -> None:
    _write_record(tmp_path)
    (tmp_path / "100.hea").write_text(header)
    with pytest.raises(DataError, match=r"100\.hea"):
        read_beats(tmp_path)


def test_other_sampling_rate_is_refused(tmp_path: Path) -> None:
    _write_record(tmp_path, fs=250)
    with pytest.raises(DataError, match="250"):
        read_beats(tmp_path)


def test_empty_directory_absent_directory_and_odd_names_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lists no record"):
        read_beats(tmp_path)
    with pytest.raises(DataError, match="No WFDB directory"):
        read_beats(tmp_path / "absent")
    (tmp_path / "RECORDS").write_text("patient7\n")
    with pytest.raises(DataError, match="patient7"):
        read_beats(tmp_path)


def test_no_usable_beat_is_a_data_error(tmp_path: Path) -> None:
    _write_record(tmp_path)
    with pytest.raises(DataError, match="No annotated beat"):
        read_beats(tmp_path, window_before=1000, window_after=1000)


@pytest.mark.parametrize("options", [{"label_rule": "x"}, {"window_after": 0}, {"window_before": -1}])
def test_impossible_options_are_config_errors(tmp_path: Path, options: dict) -> None:
    with pytest.raises(ConfigError):
        read_beats(tmp_path, **options)


def test_normalized_beats_have_zero_mean_and_unit_population_variance() -> None:
    window = np.random.default_rng(0).normal(3, 0.2, (50, 256)).astype(np.float32)
    normalized = normalize_beats(window)
    np.testing.assert_allclose(normalized.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(normalized.std(axis=1), 1, atol=1e-5)
    # Invariant to gain and offset of the amplifier, as far as float32 carries.
    np.testing.assert_allclose(normalize_beats(2.5 * window - 1), normalized, atol=1e-4)


def test_flat_beat_becomes_zeros() -> None:
    assert not normalize_beats(np.full((2, 256), 0.7, dtype=np.float32)).any()


def test_epsilon_enters_next_to_the_standard_deviation() -> None:
    window = np.array([[1.0, -1.0, 1.0, -1.0]])
    np.testing.assert_allclose(normalize_beats(window, eps=1.0), window / 2)


@pytest.mark.real_data
def test_mitdb_beats_by_symbol_are_the_published_ones(real_dir: Path) -> None:
    beats = read_beats(real_dir / "mitdb")
    kept = Counter(beats.symbol.tolist())
    assert len(beats.channel) == 48
    assert {record for record, lead in beats.channel.items() if lead != "MLII"} == {102, 104}
    published = {"N": 75052, "L": 8075, "R": 7259, "V": 7130, "/": 7028, "A": 2546, "f": 982, "F": 803}
    published |= {"j": 229, "a": 150, "E": 106, "J": 83, "Q": 33, "e": 16, "S": 2}
    assert sum(published.values()) == 109_494 == len(beats.record) + beats.dropped["window leaves the record"]
    assert len(beats.record) + sum(beats.dropped.values()) == 112_647
    assert all(0 <= count - kept[symbol] <= 35 for symbol, count in published.items())  # windows at the ends
    widest = read_beats(real_dir / "mitdb", window_before=0, window_after=1)
    assert Counter(widest.symbol.tolist()) == published


@pytest.mark.real_data
def test_real_signal_cut_short_is_noticed(real_dir: Path, tmp_path: Path) -> None:
    for extension in ("hea", "atr"):
        shutil.copyfile(real_dir / "mitdb" / f"100.{extension}", tmp_path / f"100.{extension}")
    (tmp_path / "100.dat").write_bytes((real_dir / "mitdb" / "100.dat").read_bytes()[:1_000_000])
    with pytest.raises(DataError, match=r"100\.dat"):
        read_beats(tmp_path)
