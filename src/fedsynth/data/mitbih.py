"""Read labelled beats from a WFDB directory such as the MIT-BIH Arrhythmia Database (FedDP-PALD Section on
data).

Windows are samples [r - window_before, r + window_after) around the annotated sample r, in millivolt at 360
Hz.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Int64, Shaped

from fedsynth.errors import ConfigError, DataError

SAMPLING_RATE_HZ = 360
CHANNEL_PREFERENCE = ("MLII", "MLI")  # "MLI" occurs in no MIT-BIH record; kept because the paper names it
SAME_PERSON = (
    (201, 202),
)  # records of one person, kept in one split and client  # fidelity: same-person-records
BEAT_SYMBOLS = frozenset("NLRBAaJSVrFejnE/fQ?")  # PhysioBank annotation codes that mark a beat
NORMAL_SYMBOLS = {
    "n_vs_rest": frozenset("N"),  # fidelity: normal-beat-symbols
    "aami": frozenset("NLRej"),  # the AAMI EC57 class N
}
LabelRule = Literal["n_vs_rest", "aami"]


@dataclass(frozen=True)
class Beats:
    """Annotated beats of all records, in record and time order."""

    record: Int64[np.ndarray, " n"]
    """Number of the ECG record each beat comes from, e.g. 100."""
    sample: Int64[np.ndarray, " n"]
    """Annotated sample r within its record."""
    symbol: Shaped[np.ndarray, " n"]
    """PhysioBank beat code, one character."""
    label: Int64[np.ndarray, " n"]
    """0 normal, 1 abnormal."""
    window: Float32[np.ndarray, "n window_samples"]
    """The signal around r in millivolt, not normalized."""
    dropped: dict[str, int]
    """Annotations that gave no beat, by reason."""
    channel: dict[int, str]
    """Lead read from each record."""


def read_beats(
    directory: str | Path,
    *,
    label_rule: LabelRule = "n_vs_rest",
    window_before: int = 96,
    window_after: int = 160,
) -> Beats:
    """Read every annotated beat of every record in `directory`.

    Records are those of the RECORDS file, or every .hea file without one. The lead is MLII, else MLI, else
    the first. Non-beat annotations, beats whose window leaves the record, and windows with invalid samples
    are counted in `Beats.dropped`. Signal length and the header's checksum are verified.

    Not covered: resampling (360 Hz is required), records with several samples per frame.

    Args:
        directory: Holds <record>.hea, <record>.dat and <record>.atr.
        label_rule: "n_vs_rest": N is normal, every other beat abnormal. "aami": N, L, R, e, j are normal.
        window_before: Samples before r.
        window_after: Samples from r on.

    Raises:
        ConfigError: For an unknown rule or an empty window.
        DataError: If a file is missing, cut short, damaged, or of another sampling rate, or no beat is found.
    """
    if label_rule not in NORMAL_SYMBOLS:
        raise ConfigError(f"label_rule must be one of {', '.join(NORMAL_SYMBOLS)}, got {label_rule!r}.")
    if window_before < 0 or window_after < 1:
        raise ConfigError(f"The window must be [≥ 0 before, ≥ 1 after], got {window_before}, {window_after}.")
    directory = Path(directory)
    dropped: Counter[str] = Counter()
    channel: dict[int, str] = {}
    record, sample, symbol, window = [], [], [], []
    for name in _record_names(directory):
        number = _record_number(directory, name)
        signal, channel[number] = _read_signal(directory, name)
        beats = _cut_windows(
            *_read_annotations(directory, name, len(signal)), signal, window_before, window_after, dropped
        )
        record.append(np.full(len(beats[0]), number, dtype=np.int64))
        sample.append(beats[0])
        symbol.append(beats[1])
        window.append(beats[2])
    symbols = np.concatenate(symbol)
    if len(symbols) == 0:
        raise DataError(f"No annotated beat in {directory} ({dict(dropped)}). Check its .atr files.")
    label = (~np.isin(symbols, sorted(NORMAL_SYMBOLS[label_rule]))).astype(np.int64)
    return Beats(
        np.concatenate(record),
        np.concatenate(sample),
        symbols,
        label,
        np.concatenate(window),
        dict(sorted(dropped.items())),
        channel,
    )


def normalize_beats(window: Float[np.ndarray, "n t"], eps: float = 1e-8) -> Float32[np.ndarray, "n t"]:
    """Zero mean and unit variance for each beat by itself.

    Implements the first stage of FedDP-PALD Eq. (7): x̃ = (x - mean(x)) / (std(x) + eps), with the population
    standard deviation. A flat beat becomes zeros.
    """
    # fidelity: beat-normalization
    mean = window.mean(axis=1, keepdims=True, dtype=np.float64)
    std = window.std(axis=1, keepdims=True, dtype=np.float64)
    centered = window - mean.astype(window.dtype)
    return (centered / (std + eps).astype(window.dtype)).astype(np.float32)


def _record_names(directory: Path) -> list[str]:
    if not directory.is_dir():
        raise DataError(
            f"No WFDB directory at {directory}. Set DATA_DIR, download it, or use simulated data."
        )
    listing = directory / "RECORDS"
    names = _listed(listing) if listing.is_file() else sorted(p.stem for p in directory.glob("*.hea"))
    if not names:
        raise DataError(f"{directory} lists no record: RECORDS is empty, or there is no .hea file.")
    return names


def _listed(listing: Path) -> list[str]:
    """The names in a RECORDS file, each of them once."""
    try:
        names = listing.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{listing} is not readable as UTF-8 text ({error}). Download it again, or remove it to read "
            "every .hea file."
        ) from error
    numbers = Counter(int(name) if name.isdecimal() else name for name in names)
    repeated = [str(name) for name, count in numbers.items() if count > 1]
    if repeated:
        raise DataError(f"{listing} lists {', '.join(repeated)} more than once. Keep one line per record.")
    return names


def _record_number(directory: Path, name: str) -> int:
    if not name.isdecimal():
        raise DataError(f"Record name {name!r} in {directory} is not a number, as MIT-BIH record names are.")
    return int(name)


def _wfdb(reader: Any, path: Path, *args: Any, **kwargs: Any) -> Any:
    """Call a wfdb reader; whatever a damaged file makes it raise becomes a DataError naming the file."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing. Every record needs .hea, .dat and .atr; download the directory again."
        )
    try:
        return reader(str(path.with_suffix("")), *args, **kwargs)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}). Download it again.") from error


def _read_signal(directory: Path, name: str) -> tuple[Float32[np.ndarray, " t"], str]:
    """The preferred lead in millivolt, and its name."""
    import wfdb

    header_path, signal_path = directory / f"{name}.hea", directory / f"{name}.dat"
    header = _wfdb(wfdb.rdheader, header_path)
    if header.fs != SAMPLING_RATE_HZ:
        raise DataError(
            f"{header_path}: sampling rate {header.fs} Hz, {SAMPLING_RATE_HZ} Hz is needed. Resample it."
        )
    if not header.sig_len or header.n_sig < 1 or header.n_sig != len(header.sig_name or ()):
        raise DataError(
            f"{header_path} is cut short: signal lines or the length are missing. Download it again."
        )
    _check_length(signal_path, header)
    preferred = [header.sig_name.index(lead) for lead in CHANNEL_PREFERENCE if lead in header.sig_name]
    index = preferred[0] if preferred else 0
    record = _wfdb(wfdb.rdrecord, signal_path, channels=[index], physical=False)
    if record.d_signal is None or len(record.d_signal) != header.sig_len:
        raise DataError(
            f"{signal_path}: shorter than the {header.sig_len} samples of its header. Download it again."
        )
    # WFDB stores the checksum modulo 2^16, some writers as a signed number.
    stored, actual = record.checksum[0], record.calc_checksum()[0]
    if stored is not None and (stored - actual) % 65536 != 0:
        raise DataError(f"{signal_path}: checksum {actual}, its header says {stored}. Download it again.")
    return record.dac()[:, 0].astype(np.float32), header.sig_name[index]


def _check_length(path: Path, header: Any) -> None:
    """Refuse a signal file shorter than its header promises, before wfdb stumbles over it."""
    bytes_per_sample = {"212": 1.5, "16": 2.0, "80": 1.0}
    one_file = set(header.file_name) == {path.name} and not any(header.byte_offset or ())
    if not path.is_file() or not one_file or any(form not in bytes_per_sample for form in header.fmt):
        return
    wanted = int(header.sig_len * sum(bytes_per_sample[form] for form in header.fmt))
    size = path.stat().st_size
    if size < wanted:
        raise DataError(
            f"{path} is cut short: {size} bytes, its header promises {wanted}. Download it again."
        )


def _read_annotations(
    directory: Path, name: str, length: int
) -> tuple[Int64[np.ndarray, " n"], Shaped[np.ndarray, " n"]]:
    import wfdb

    path = directory / f"{name}.atr"
    annotation = _wfdb(wfdb.rdann, path, "atr")
    if path.read_bytes()[-2:] != b"\0\0":  # MIT annotation files end in a zero word
        raise DataError(f"{path} is cut short: the end mark is missing. Download it again.")
    sample = np.asarray(annotation.sample, dtype=np.int64)
    if (np.diff(sample) < 0).any():
        at = int(sample[1:][np.diff(sample) < 0][0])
        raise DataError(
            f"{path} is damaged: its annotations are not in time order (sample {at} comes too late). "
            "Download it again."
        )
    if len(sample) and (sample[0] < 0 or sample[-1] >= length):
        at = int(sample[0] if sample[0] < 0 else sample[-1])
        raise DataError(
            f"{path} is damaged or of another record: sample {at} is annotated, the signal has {length} "
            "samples. Download it again."
        )
    return sample, np.asarray(annotation.symbol, dtype="<U1")


def _cut_windows(
    sample: np.ndarray, symbol: np.ndarray, signal: np.ndarray, before: int, after: int, dropped: Counter[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples, symbols and windows of the usable beats; counts the others in `dropped`."""
    is_beat = np.isin(symbol, sorted(BEAT_SYMBOLS))
    inside = (sample >= before) & (sample + after <= len(signal))
    dropped["not a beat"] += int((~is_beat).sum())
    dropped["window leaves the record"] += int((is_beat & ~inside).sum())
    keep = is_beat & inside
    sample, symbol = sample[keep], symbol[keep]
    window = signal[sample[:, None] + np.arange(-before, after)]  # [n, before + after]
    valid = np.isfinite(window).all(axis=1)
    dropped["invalid samples"] += int((~valid).sum())
    return sample[valid], symbol[valid], window[valid]
