"""A WFDB directory of simulated two-lead ECG records with ectopic beats and bundle-branch-like records.

The rhythm and the P-QRS-T shape come from neurokit2's ECGSYN (McSharry et al. 2003); ectopic beats are
inserted here. They exercise code; they are no model of disease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import find_peaks
from scipy.signal.windows import tukey

from fedsynth.data.mitbih import SAMPLING_RATE_HZ

COMMENT = "SIMULATED by fedsynth with neurokit2; not patient data"
FIRST_RECORD = 100
BEFORE, AFTER = 100, 150  # samples around R that make up one beat


@dataclass(frozen=True)
class _Rhythm:
    """What one kind of record holds."""

    symbol: str
    """Code of its ordinary beats."""
    heights: tuple[float, float, float, float, float]
    """ECGSYN event heights of P, Q, R, S, T."""
    widths: tuple[float, float, float, float, float]
    """ECGSYN event widths of P, Q, R, S, T, in radian."""
    ectopic: str
    """Code of the inserted beats."""
    ectopic_shares: tuple[float, float]
    """Range of their share of all beats."""


_NORMAL = (1.2, -5.0, 30.0, -7.5, 0.75)
_NARROW = (0.25, 0.1, 0.1, 0.1, 0.4)
_RHYTHMS = {
    "ventricular": _Rhythm("N", _NORMAL, _NARROW, "V", (0.12, 0.4)),
    "atrial": _Rhythm("N", _NORMAL, _NARROW, "A", (0.12, 0.35)),
    "left bundle": _Rhythm("L", (1.2, -1.0, 24.0, -1.0, 0.3), (0.25, 0.1, 0.15, 0.15, 0.4), "V", (0.0, 0.05)),
    "right bundle": _Rhythm(
        "R", (1.2, -3.0, 28.0, -11.0, 0.6), (0.25, 0.1, 0.1, 0.16, 0.4), "V", (0.0, 0.05)
    ),
    "quiet": _Rhythm("N", _NORMAL, _NARROW, "V", (0.02, 0.05)),
}
_RECORDS = (
    (["ventricular"] * 8)
    + (["atrial"] * 4)
    + (["left bundle"] * 3)
    + (["right bundle"] * 2)
    + (["quiet"] * 3)
)


def write_records(directory: Path, rng: np.random.Generator) -> None:
    """Write 20 records (.hea, .dat, .atr) named 100 to 119 and RECORDS into `directory`.

    Each lasts 60 to 90 s at 360 Hz. Two records have no MLII lead. Symbols: N, L, R, V, A and one rhythm
    annotation (+) per record.
    """
    import wfdb

    names = []
    for offset, kind in enumerate(rng.permutation(_RECORDS).tolist()):
        name = str(FIRST_RECORD + offset)
        leads = ["V5", "V2"] if offset in (2, 4) else ["MLII", "V1"]
        signal, sample, symbol = _record(_RHYTHMS[kind], rng)
        wfdb.wrsamp(
            name,
            fs=SAMPLING_RATE_HZ,
            units=["mV", "mV"],
            sig_name=leads,
            p_signal=np.clip(signal, -5, 5),
            fmt=["212", "212"],
            adc_gain=[200, 200],
            baseline=[0, 0],
            comments=[COMMENT],
            write_dir=str(directory),
        )
        notes = ["(N"] + [""] * len(sample)
        sample, symbol = np.concatenate([[18], sample]), ["+", *symbol]
        wfdb.wrann(name, "atr", sample, symbol=symbol, aux_note=notes, write_dir=str(directory))
        names.append(name)
    (directory / "RECORDS").write_text("\n".join(names) + "\n")


def _record(rhythm: _Rhythm, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Two leads in millivolt [t, 2], annotated samples and their symbols."""
    clean = _ecgsyn(rhythm, rng)
    peaks, _ = find_peaks(
        clean, height=0.5 * np.percentile(clean, 99.5), distance=int(0.4 * SAMPLING_RATE_HZ)
    )
    insert: Callable[..., int] = _insert_ventricular if rhythm.ectopic == "V" else _insert_atrial
    share = rng.uniform(*rhythm.ectopic_shares)
    sample: list[int] = []
    symbol: list[str] = []
    for index, peak in enumerate(peaks.tolist()):
        has_room = BEFORE + 100 < peak < len(clean) - AFTER and index > 0
        if has_room and symbol[-1] == rhythm.symbol and rng.random() < share:
            sample.append(insert(clean, peak, rng))
            symbol.append(rhythm.ectopic)
        else:
            sample.append(peak)
            symbol.append(rhythm.symbol)
    second = -0.5 * clean + 3.0 * np.gradient(clean)
    leads = np.stack([clean, second], axis=1) * rng.uniform(0.8, 1.5)
    time = np.arange(len(clean)) / SAMPLING_RATE_HZ
    wander = rng.uniform(0.05, 0.2) * np.sin(2 * np.pi * rng.uniform(0.15, 0.35) * time + rng.uniform(0, 6))
    noise = rng.normal(0, rng.uniform(0.03, 0.12), leads.shape)
    return leads + wander[:, None] + noise, np.array(sample), symbol


def _ecgsyn(rhythm: _Rhythm, rng: np.random.Generator) -> np.ndarray:
    import neurokit2

    signal = neurokit2.ecg_simulate(
        duration=int(rng.integers(60, 91)),
        sampling_rate=SAMPLING_RATE_HZ,
        noise=0,
        heart_rate=int(rng.integers(60, 90)),
        heart_rate_std=2,
        method="ecgsyn",
        random_state=int(rng.integers(2**31)),
        ai=tuple(height * rng.normal(1, 0.08) for height in rhythm.heights),
        bi=tuple(width * rng.normal(1, 0.06) for width in rhythm.widths),
    )
    signal = np.asarray(signal, dtype=float)
    return signal - np.median(signal)


def _remove(signal: np.ndarray, peak: int) -> np.ndarray:
    """Fade out the beat at `peak` and return what it was."""
    part = signal[peak - BEFORE : peak + AFTER]
    faded = part * tukey(len(part), 0.3)
    part -= faded
    return faded


def _insert_ventricular(signal: np.ndarray, peak: int, rng: np.random.Generator) -> int:
    """Replace a beat by an early, wide one with a discordant T wave; its annotated sample."""
    height = rng.choice((-1, 1), p=(0.2, 0.8)) * rng.uniform(0.6, 1.5) * signal[peak]
    _remove(signal, peak)
    early = peak - int(rng.integers(20, 90))
    time = np.arange(-BEFORE, AFTER)
    width = rng.uniform(6, 18)  # samples; 360 Hz, so the QRS lasts about 0.07 (a fusion beat) to 0.2 s
    wave = np.exp(-0.5 * (time / width) ** 2) - 0.35 * np.exp(-0.5 * ((time - 75) / 28) ** 2)
    signal[early - BEFORE : early + AFTER] += height * wave
    return early


def _insert_atrial(signal: np.ndarray, peak: int, rng: np.random.Generator) -> int:
    """Move a beat forward in time and weaken its P wave or turn it over; its annotated sample."""
    beat = _remove(signal, peak)
    p_wave = beat[: BEFORE - 25]
    p_wave *= rng.uniform(-1.0, 0.9)
    early = peak - int(rng.integers(35, 95))
    signal[early - BEFORE : early + AFTER] += beat
    return early
