"""openSMILE-like low-level descriptors of a simulated session, 100 frames a second.

Not synthesized speech: every descriptor is drawn directly, around the voice of whoever speaks in a frame, with
syllables, accents, noise, and the room of the session. Unvoiced frames hold what openSMILE writes there: zeros,
and −201 for formant amplitudes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32
from scipy.signal import lfilter

from fedsynth.data.edaic.layout import FRAME_SECONDS
from fedsynth.data.edaic.simulated_people import Person
from fedsynth.data.edaic.simulated_text import Turn

EGEMAPS_COLUMNS = (
    "Loudness_sma3", "alphaRatio_sma3", "hammarbergIndex_sma3", "slope0-500_sma3", "slope500-1500_sma3",
    "spectralFlux_sma3", "mfcc1_sma3", "mfcc2_sma3", "mfcc3_sma3", "mfcc4_sma3",
    "F0semitoneFrom27.5Hz_sma3nz", "jitterLocal_sma3nz", "shimmerLocaldB_sma3nz", "HNRdBACF_sma3nz",
    "logRelF0-H1-H2_sma3nz", "logRelF0-H1-A3_sma3nz", "F1frequency_sma3nz", "F1bandwidth_sma3nz",
    "F1amplitudeLogRelF0_sma3nz", "F2frequency_sma3nz", "F2amplitudeLogRelF0_sma3nz", "F3frequency_sma3nz",
    "F3amplitudeLogRelF0_sma3nz",
)  # fmt: skip
NUM_CEPSTRA = 13
MFCC_COLUMNS = tuple(
    f"pcm_fftMag_mfcc{order}[{index}]" for order in ("", "_de", "_de_de") for index in range(NUM_CEPSTRA)
)
_VOICED = slice(EGEMAPS_COLUMNS.index("F0semitoneFrom27.5Hz_sma3nz"), None)
_AMPLITUDES = [index for index, name in enumerate(EGEMAPS_COLUMNS) if "amplitude" in name]
_UNVOICED_AMPLITUDE = -201.0

# Of an ordinary voice in the middle of a syllable, then how far each falls (or rises) when no one speaks, then
# how far two speakers differ, how far two rooms differ, and the noise from frame to frame. Loudness and F0 are
# made apart; jitter, shimmer, flux in units of their column.
_TYPICAL = np.array(
    [
        0,
        -9,
        19,
        0.03,
        -0.02,
        0,
        22,
        2,
        6,
        -2,
        0,
        0.028,
        1.15,
        5.5,
        3.5,
        21,
        560,
        1250,
        -22,
        1650,
        -30,
        2650,
        -34,
    ]
)
_PAUSE = np.array([0, -7, 6, -0.04, 0.01, 0, -9, 3, 2, 4] + [0] * 13)
_SPEAKER = np.array(
    [0, 2.2, 2.6, 0.012, 0.006, 0, 4, 5, 5, 5, 0, 0.006, 0.18, 1.3, 2.2, 3.2, 45, 90, 5, 90, 5, 110, 5]
)
_ROOM = np.array(
    [0, -2.4, 2.2, -0.012, 0.004, 0, -5, 4, -3, 2, 0, 0.002, 0.05, 1.2, 0.5, 2, 0, 60, -2, 0, -2, 0, -2]
)
_NOISE = np.array(
    [0, 3, 3.4, 0.02, 0.01, 0, 6, 7, 7, 7, 0, 0.014, 0.5, 2.2, 4, 6, 110, 180, 11, 190, 10, 180, 10]
)
# Change per unit of flatness: rougher and breathier, less energy high up.
_FLAT = np.array(
    [
        0,
        -1.2,
        1.4,
        -0.006,
        -0.002,
        0,
        1.5,
        0,
        0,
        0,
        0,
        0.005,
        0.14,
        -0.9,
        0.9,
        1.6,
        -12,
        25,
        -1.5,
        -15,
        -1.5,
        0,
        -1.5,
    ]
)


@dataclass(frozen=True)
class _Voice:
    pitch: float
    """Semitones from 27.5 Hz."""
    accent: float
    """Spread of the pitch contour in semitones."""
    level: float
    """Loudness in the middle of a syllable, sone."""
    swing: float
    """Spread of the logarithm of loudness over an utterance."""
    rate: float
    """Syllables per second."""
    offset: np.ndarray
    """Added to _TYPICAL."""


def simulated_egemaps(
    rng: np.random.Generator, person: Person, turns: list[Turn], seconds: float
) -> Float32[np.ndarray, "frames 23"]:
    """The columns `EGEMAPS_COLUMNS` of a session of this length."""
    num_frames = round(seconds / FRAME_SECONDS)
    voices = {False: _interviewer(rng, person), True: _participant(rng, person)}
    loudness = np.full(num_frames, 0.06)
    pitch = np.zeros(num_frames)
    opening = np.zeros(num_frames)  # 0 silence, 1 middle of a syllable
    offset = np.zeros((num_frames, len(EGEMAPS_COLUMNS)))
    for turn in turns:
        span = slice(round(turn.utterance.start / FRAME_SECONDS), round(turn.utterance.end / FRAME_SECONDS))
        voice, num = voices[turn.is_participant], span.stop - span.start
        opening[span] = _syllables(rng, num, voice.rate)
        contour = _wander(rng, (num,), 0.96)
        fall = np.linspace(1, -1, num)  # declination
        pitch[span] = voice.pitch + voice.accent * (0.8 * contour + 0.7 * fall) + rng.normal(0, 0.6)
        swing = voice.swing * (_wander(rng, (num,), 0.96) + 0.5 * fall)
        loudness[span] += voice.level * opening[span] * np.exp(swing + rng.normal(0, 0.08))
        offset[span] = voice.offset
    values = _TYPICAL + offset + _PAUSE * (1 - opening)[:, None] + _NOISE * _wander(rng, offset.shape, 0.8)
    room = rng.normal(0, 0.35) + (1.0 if person.agent else 0.0)
    values += _ROOM * room
    values[:, 0] = loudness * np.exp(0.25 * room + 0.08 * rng.normal(size=num_frames))
    values[:, 5] = 0.35 * values[:, 0] * np.exp(0.3 * rng.normal(size=num_frames))
    values[:, 10] = pitch
    return _silenced(values, opening > 0.25).astype(np.float32)


def simulated_mfcc(
    rng: np.random.Generator, egemaps: Float32[np.ndarray, "frames 23"]
) -> Float32[np.ndarray, "frames 39"]:
    """The columns `MFCC_COLUMNS`: 13 cepstra that go with loudness and eGeMAPS's four, and their differences."""
    cepstra = 8 * _wander(rng, (len(egemaps), NUM_CEPSTRA), 0.8) + rng.normal(0, 3, NUM_CEPSTRA)
    cepstra[:, 0] += 12 * np.log(egemaps[:, 0])
    cepstra[:, 1:5] += egemaps[:, 6:10]
    first = _difference(cepstra)
    return np.hstack([cepstra, first, _difference(first)]).astype(np.float32)


def _participant(rng: np.random.Generator, person: Person) -> _Voice:
    flat = person.manner.flatness
    return _Voice(
        pitch=rng.normal(23 if person.gender == "male" else 33, 2.2) - 0.8 * flat,
        accent=float(np.exp(rng.normal(0.75, 0.2) - 0.25 * flat)),
        level=float(np.exp(rng.normal(0.0, 0.2) - 0.18 * flat)),
        swing=float(np.exp(rng.normal(-1.0, 0.2) - 0.22 * flat)),
        rate=float(np.exp(rng.normal(1.5, 0.1) - 0.07 * flat)),
        offset=_SPEAKER * rng.normal(size=len(_SPEAKER)) + _FLAT * flat,
    )


def _interviewer(rng: np.random.Generator, person: Person) -> _Voice:
    """One woman's voice, or the synthetic one of the agent; over loudspeakers, so it differs by session a little."""
    variation = 0.1 * _SPEAKER * rng.normal(size=len(_SPEAKER))
    if person.agent:
        return _Voice(
            34.0, 1.2, 0.75 * float(np.exp(rng.normal(0, 0.1))), 0.2, 4.6, variation - 0.8 * _SPEAKER
        )
    return _Voice(32.0, 1.9, 0.65 * float(np.exp(rng.normal(0, 0.1))), 0.3, 4.2, variation + 0.5 * _SPEAKER)


def _syllables(rng: np.random.Generator, num: int, rate: float) -> Float[np.ndarray, " num"]:
    """How open the mouth is, 0 to 1, at about `rate` syllables per second."""
    speed = rate * np.exp(0.25 * _wander(rng, (num,), 0.95))
    phase = rng.random() + np.cumsum(speed) * FRAME_SECONDS
    return np.clip(0.45 + 0.65 * np.sin(2 * np.pi * phase), 0, 1)


def _wander(rng: np.random.Generator, shape: tuple[int, ...], memory: float) -> np.ndarray:
    """Unit-variance noise that forgets by the factor `memory` per frame (first-order autoregression)."""
    shocks = rng.normal(size=shape) * np.sqrt(1 - memory**2)
    shocks[:1] /= np.sqrt(1 - memory**2)  # starts stationary
    return lfilter([1.0], [1.0, -memory], shocks, axis=0)


def _silenced(values: np.ndarray, is_voiced: np.ndarray) -> np.ndarray:
    """Lowest possible values kept, voiced-only columns blanked where nothing is voiced."""
    for name in ("jitterLocal_sma3nz", "shimmerLocaldB_sma3nz", "F1frequency_sma3nz", "F1bandwidth_sma3nz"):
        column = EGEMAPS_COLUMNS.index(name)
        values[:, column] = np.maximum(values[:, column], 0.1 * _TYPICAL[column])
    values[~is_voiced, _VOICED] = 0
    values[:, _AMPLITUDES] = np.where(is_voiced[:, None], values[:, _AMPLITUDES], _UNVOICED_AMPLITUDE)
    return values


def _difference(values: np.ndarray) -> np.ndarray:
    """openSMILE's delta regression over two frames to each side, edges repeated."""
    padded = np.pad(values, ((2, 2), (0, 0)), mode="edge")
    num = len(values)
    near, far = padded[3 : 3 + num] - padded[1 : 1 + num], padded[4 : 4 + num] - padded[:num]
    return (near + 2 * far) / 10
