"""Checks of scalar privacy parameters. Free of torch and scipy: a configuration is checked at once."""

from __future__ import annotations

import math
from numbers import Integral, Real

from fedsynth.errors import ConfigError


class PrivacyParameterError(ConfigError, ValueError):
    """A privacy parameter lies outside the range in which its guarantee has a meaning."""


def check_epsilon(value: object, name: str = "epsilon") -> float:
    """ε as a float in [0, ∞]. ∞ means no privacy (no noise); 0 bounds the total variation distance by δ.

    Args:
        value: What the user gave.
        name: What to call it in the message, e.g. ``"stages.release.epsilon"``.

    Raises:
        PrivacyParameterError: If it is no number, NaN, or negative.
    """
    epsilon = _number(value, name, "in [0, inf]")
    if not epsilon >= 0:
        raise _out_of_range(name, value, "in [0, inf]", "Typical: 1 to 8; .inf for a release without noise.")
    return epsilon


def check_delta(value: object, name: str = "delta") -> float:
    """δ as a float in (0, 1). δ = 0 is unreachable with Gaussian noise, δ = 1 protects nothing.

    Raises:
        PrivacyParameterError: If it is no number, NaN, or outside (0, 1).
    """
    delta = _number(value, name, "in (0, 1)")
    if not 0 < delta < 1:
        raise _out_of_range(name, value, "in (0, 1)", "Typical: 1.0e-5, well below 1 / number of records.")
    return delta


def check_positive(value: object, name: str) -> float:
    """A finite float > 0: a clipping radius or a sensitivity.

    Raises:
        PrivacyParameterError: If it is no number, NaN, infinite, zero or negative.
    """
    number = _number(value, name, "a finite number > 0")
    if not 0 < number < math.inf:
        raise _out_of_range(name, value, "a finite number > 0", "An unbounded norm has no sensitivity.")
    return number


def check_noise_std(value: object, name: str = "std") -> float:
    """A standard deviation in [0, ∞]; 0 means no noise.

    Raises:
        PrivacyParameterError: If it is no number, NaN, or negative.
    """
    std = _number(value, name, "a number >= 0")
    if not std >= 0:
        raise _out_of_range(name, value, "a number >= 0", "0 means no noise.")
    return std


def check_count(value: object, name: str, minimum: int = 1) -> int:
    """An integer >= ``minimum``: a shard size, a number of shards, clients or classes.

    Raises:
        PrivacyParameterError: If it is no integer or too small.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _out_of_range(name, value, f"an integer >= {minimum}", f"Got a {type(value).__name__}.")
    if value < minimum:
        raise _out_of_range(name, value, f"an integer >= {minimum}", "Correct the configuration.")
    return int(value)


def check_percentile(value: object, name: str = "percentile") -> float:
    """A percentile in (0, 100].

    Raises:
        PrivacyParameterError: If it is no number, NaN, or outside (0, 100].
    """
    percentile = _number(value, name, "in (0, 100]")
    if not 0 < percentile <= 100:
        raise _out_of_range(name, value, "in (0, 100]", "Typical: 95.")
    return percentile


def _number(value: object, name: str, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        # YAML 1.1 reads 1e-5 as text; the message has to say so or nobody finds it.
        hint = f"It is a {type(value).__name__}; in YAML write 1.0e-5 (with the dot), not 1e-5."
        raise _out_of_range(name, value, allowed, hint)
    number = float(value)
    if math.isnan(number):
        raise _out_of_range(name, value, allowed, "NaN usually comes from an earlier division by zero.")
    return number


def _out_of_range(name: str, value: object, allowed: str, advice: str) -> PrivacyParameterError:
    return PrivacyParameterError(f"{name} must be {allowed}, got {value!r}. {advice}")
