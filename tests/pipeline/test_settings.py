"""Settings: every message names the key, the value and the remedy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import build_settings, key_values, setting, unknown_key


@dataclass(frozen=True)
class Settings:
    epsilon: float = setting(above=0.0, allow_infinite=True, remedy="The paper uses 4.")
    share: float = setting(minimum=0.0, below=1.0)
    count: int = setting(minimum=1, maximum=9)
    kind: str = setting(one_of=("mean", "gated"))
    widths: list[int] = setting(minimum=1)
    radius: float | None = setting(above=0.0)
    flag: bool = setting()
    shares: dict[str, float] = setting(remedy="One a part.")
    names: list[str] | None = setting(remedy="Names, or null.")
    workers: int = setting(minimum=0, in_key=False)


GOOD: dict[str, Any] = {
    "epsilon": 4.0,
    "share": 0.5,
    "count": 3,
    "kind": "mean",
    "widths": [1, 2],
    "radius": None,
    "flag": True,
    "shares": {"a": 0.5},
    "names": None,
    "workers": 2,
}


def build(**changes: Any) -> Settings:
    return build_settings(Settings, {**GOOD, **changes}, "stages.toy")


def test_good_values_arrive_as_they_are() -> None:
    assert build() == Settings(**GOOD)


@given(epsilon=st.floats(min_value=0, exclude_min=True), count=st.integers(1, 9))
def test_values_within_their_bounds_are_accepted(epsilon: float, count: int) -> None:
    built = build(epsilon=epsilon, count=count)
    assert (built.epsilon, built.count) == (epsilon, count)


@given(epsilon=st.floats(max_value=0) | st.just(math.nan))
def test_values_out_of_bounds_are_refused_with_key_value_and_remedy(epsilon: float) -> None:
    with pytest.raises(ConfigError) as caught:
        build(epsilon=epsilon)
    assert f"stages.toy.epsilon must be > 0, got {epsilon!r}. The paper uses 4." == str(caught.value)
    assert caught.value.key == "stages.toy.epsilon"


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("share", 1.0, "≥ 0 and < 1"),
        ("share", -0.1, "≥ 0 and < 1"),
        ("count", 0, "≥ 1 and ≤ 9"),
        ("count", 10, "≥ 1 and ≤ 9"),
        ("kind", "median", "one of mean, gated"),
        ("widths", [3, 0], "≥ 1"),
        ("radius", 0.0, "> 0"),
        ("workers", -1, "≥ 0"),
    ],
)
def test_each_kind_of_bound_is_checked(name: str, value: Any, bound: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**{name: value})
    assert str(caught.value) == f"stages.toy.{name} must be {bound}, got {value!r}."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", "much"),
        ("count", 2.5),
        ("count", True),
        ("count", None),
        ("count", ""),
        ("widths", 3),
        ("widths", ["a"]),
        ("flag", "maybe"),
        ("epsilon", {"a": 1}),
        ("kind", None),
    ],
)
def test_wrong_types_are_refused_with_key_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^stages\.toy\.{name}(\[0\])? has the wrong type") as caught:
        build(**{name: value})
    assert f"got {value!r}" in str(caught.value)
    assert caught.value.key == f"stages.toy.{name}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", {}),
        ("names", {"a": 1}),
        ("names", [{}]),
        ("names", ["a", []]),
        ("widths", {}),
        ("widths", [[1]]),
        ("shares", []),
        ("shares", {"a": {}}),
        ("shares", {"a": [1.0]}),
        ("kind", []),
    ],
)
def test_lists_and_mappings_in_place_of_each_other_or_of_numbers_are_refused_by_name(
    name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"^stages\.toy\.{name} has the wrong type") as caught:
        build(**{name: value})
    assert f"got {value!r}" in str(caught.value)
    assert caught.value.key == f"stages.toy.{name}"


def test_infinity_is_a_number() -> None:
    assert build(epsilon=math.inf).epsilon == math.inf


@pytest.mark.parametrize("word", [".inf", "inf", ".Inf", "+.inf"])
def test_infinity_may_be_a_word(word: str) -> None:
    assert build(epsilon=word).epsilon == math.inf


def test_minus_infinity_and_nan_as_words_are_out_of_bounds() -> None:
    for word in ("-.inf", "-inf", ".nan", "nan"):
        with pytest.raises(ConfigError, match=r"epsilon must be .*> 0"):
            build(epsilon=word)


def test_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.toy\.epsilonn is not a known key\. Did you mean 'epsilon'\?"
    ):
        build(epsilonn=1.0)


def test_unknown_key_unlike_all_others_is_refused_with_all_of_them() -> None:
    assert unknown_key("a.zzz", "zzz", ["beta", "alpha"]) == (
        "a.zzz is not a known key. Known keys: alpha, beta."
    )


@pytest.mark.parametrize("without", ["epsilon", "radius"])
def test_a_key_left_out_is_an_error_not_a_default(without: str) -> None:
    values = {name: value for name, value in GOOD.items() if name != without}
    with pytest.raises(ConfigError, match=rf"stages\.toy\.{without} is missing"):
        build_settings(Settings, values, "stages.toy")


def test_a_mandatory_key_nobody_filled_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"stages\.toy\.kind is missing.*stages\.toy\.kind=…"):
        build(kind="???")


def test_settings_without_a_path_are_named_without_one() -> None:
    with pytest.raises(ConfigError, match=r"^count must be"):
        build_settings(Settings, {**GOOD, "count": 0}, "")


def test_own_check_of_a_settings_class_is_called_with_the_path() -> None:
    @dataclass(frozen=True)
    class Pair:
        low: int = setting()
        high: int = setting()

        def check(self, path: str) -> None:
            if self.low > self.high:
                raise ConfigError(f"{path}.low is above {path}.high.")

    assert build_settings(Pair, {"low": 1, "high": 2}, "p") == Pair(1, 2)
    with pytest.raises(ConfigError, match=r"p\.low is above p\.high"):
        build_settings(Pair, {"low": 2, "high": 1}, "p")


def test_values_that_cannot_change_a_result_stay_out_of_the_key() -> None:
    assert key_values(build()) == {name: value for name, value in GOOD.items() if name != "workers"}


@pytest.mark.parametrize("changes", [{"radius": math.inf}, {"share": -math.inf}, {"share": math.nan}])
def test_values_that_are_not_finite_are_refused_unless_the_field_allows_them(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.toy\.{next(iter(changes))} must be a finite number and"):
        build(**changes)
    assert build(epsilon=math.inf).epsilon == math.inf
