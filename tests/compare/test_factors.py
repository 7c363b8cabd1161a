"""What differs between groups, named by the key a person would set."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.compare.factors import (
    ABSENT,
    PRESENT,
    Factor,
    differing_keys,
    find_factors,
    flat_settings,
    shown,
    sweep_axis,
)


def config(**settings):
    data = {"num_clients": settings.pop("num_clients", 5), "dir": settings.pop("dir", "/a")}
    return {
        "seed": settings.pop("seed", 1),
        "run_id": "x",
        "paths": {"log_dir": "/l"},
        "data": data,
        "model": {"normalization": settings.pop("normalization", "batch")},
        "federated": {"strategy": {"name": settings.pop("strategy", "fedavg")}},
        "stages": {
            "clients": {"stage": "clients", "num_clients": data["num_clients"], "seed": 3},
            **settings,
        },
    }


def factors(*configs, commands=""):
    return find_factors([flat_settings(item) for item in configs], commands)


def test_seeds_paths_and_data_folders_are_no_settings():
    assert flat_settings(config(seed=1, dir="/a")) == flat_settings(config(seed=2, dir="/b"))


def test_split_seed_is_a_setting():
    assert flat_settings({"data": {"split_seed": 1}}) != flat_settings({"data": {"split_seed": 2}})


@given(st.lists(st.sampled_from([5, 20, 100]), min_size=1, max_size=5))
def test_equal_settings_differ_in_nothing(values):
    settings = [flat_settings(config(num_clients=value)) for value in values]
    assert bool(differing_keys(settings)) == (len(set(values)) > 1)


def test_a_value_and_its_copy_in_a_stage_are_one_factor():
    (factor,) = factors(config(num_clients=5), config(num_clients=20))
    assert factor.key == "data.num_clients"
    assert factor.values == (5, 20)
    assert factor.copies == ("stages.clients.num_clients",)
    assert factor.companions == ()


def test_a_typed_key_names_the_factor():
    both = (config(num_clients=5), config(num_clients=20))
    (factor,) = factors(*both, commands="train stages.clients.num_clients=20")
    assert factor.key == "stages.clients.num_clients"


def test_four_and_four_point_zero_are_the_same():
    assert differing_keys([{"a": 4}, {"a": 4.0}]) == {}
    assert differing_keys([{"a": True}, {"a": 1}]) == {"a": (True, 1)}


def test_a_stage_only_some_have_is_one_factor_and_no_axis():
    found = factors(config(), config(extra={"stage": "extra", "a": 1, "b": 2}))
    assert [(factor.key, factor.values, factor.is_stage) for factor in found] == [
        ("stages.extra", (ABSENT, PRESENT), True)
    ]
    assert sweep_axis(found) is None


def test_numbers_over_a_wide_range_are_on_a_logarithmic_axis():
    axis = sweep_axis(factors(config(num_clients=5), config(num_clients=20), config(num_clients=100)))
    assert (axis.title, axis.positions, axis.is_logarithmic) == ("data.num_clients", (5, 20, 100), True)
    assert axis.labels == ("5", "20", "100")
    assert not sweep_axis(factors(config(num_clients=5), config(num_clients=6))).is_logarithmic


def test_two_factors_of_words_are_put_together():
    items = (config(), config(strategy="fedbn"), config(normalization="group"))
    axis = sweep_axis(factors(*items))
    assert axis.labels == ("batch, fedavg", "batch, fedbn", "group, fedavg")
    assert axis.title == "model.normalization and federated.strategy.name"
    assert axis.positions == (0, 1, 2)


FEDMPA = {
    "name": "fedmpa",
    "sensitivity": 2.0,
    "server_momentum": 0.9,
    "pull_weights": [0.1, 0.1, 0.1],
    "margin": 1.0,
}


def with_strategy(**numbers):
    strategy = {**FEDMPA, **numbers} if numbers.get("name") != "fedavg" else {"name": "fedavg"}
    stages = {"encoder": {"stage": "encoder", "strategy": strategy}}
    return {"federated": {"strategy": strategy}, "stages": stages}


def test_strategies_are_told_apart_by_their_name_not_by_numbers_that_only_one_has():
    found = factors(with_strategy(), with_strategy(name="fedavg"))
    assert [(factor.key, factor.values) for factor in found] == [
        ("federated.strategy.name", ("fedmpa", "fedavg"))
    ]
    assert found[0].copies == ("stages.encoder.strategy.name",)
    assert found[0].companions == ()
    assert sweep_axis(found).labels == ("fedmpa", "fedavg")


def test_a_number_of_one_strategy_is_a_factor_of_its_own():
    found = factors(with_strategy(sensitivity=1.0), with_strategy(sensitivity=4.0))
    assert [(factor.key, factor.values) for factor in found] == [
        ("federated.strategy.sensitivity", (1.0, 4.0))
    ]
    mixed = factors(
        with_strategy(sensitivity=1.0), with_strategy(sensitivity=4.0), with_strategy(name="fedavg")
    )
    assert {factor.key: factor.values for factor in mixed} == {
        "federated.strategy.name": ("fedmpa", "fedmpa", "fedavg"),
        "federated.strategy.sensitivity": (1.0, 4.0, ABSENT),
    }


def test_infinity_is_a_word_on_the_axis_not_a_place():
    values = (16.0, math.inf, 4.0)
    axis = sweep_axis(find_factors([{"privacy.epsilon": value} for value in values]))
    assert (axis.is_numeric, axis.labels) == (False, ("16", "∞", "4"))
    assert sorted(axis.order) == [4.0, 16.0, math.inf]


def test_what_changes_together_with_other_values_is_said():
    found = find_factors(
        [{"data.num_clients": 5, "data.least": 20}, {"data.num_clients": 20, "data.least": 10}]
    )
    assert [(factor.key, factor.companions) for factor in found] == [("data.num_clients", ("data.least",))]
    assert sweep_axis(found).title == "data.num_clients"


@pytest.mark.parametrize(
    "settings",
    [
        [{"a": 1, "b": 2, "c": 3, "d": 4}, {"a": 2, "b": 3, "c": 4, "d": 5}],
        [{"a": 1}, {"a": 1}],
        [
            {"a": 1, "b": 1, "c": 1},
            {"a": 2, "b": 1, "c": 2},
            {"a": 1, "b": 2, "c": 3},
            {"a": 3, "b": 1, "c": 1},
        ],
        [{"a": 1}, {"a": 2}, {"a": 1}],
        [{"a": 1}, {}],
    ],
    ids=["too much at once", "equal", "three factors", "two groups at one place", "a key only one has"],
)
def test_what_is_no_sweep_has_no_axis(settings):
    assert sweep_axis(find_factors(settings)) is None


@pytest.mark.parametrize(
    ("key", "name"), [("data.num_clients", "num_clients"), ("stages.release.epsilon", "release.epsilon")]
)
def test_factors_are_named_without_their_section(key, name):
    assert Factor(key, (1, 2)).name == name


def test_values_are_shown_as_configs_write_them():
    values = (None, True, 4.0, 1e-5, [1, "a"], math.inf)
    assert [shown(value) for value in values] == ["null", "true", "4", "1e-05", "[1, a]", "∞"]


def test_threads_of_a_stage_or_a_group_are_hardware():
    one = config(tstr={"stage": "tstr_densenet", "trainer": {"num_threads": 1, "max_epochs": 3}})
    two = config(tstr={"stage": "tstr_densenet", "trainer": {"num_threads": 8, "max_epochs": 3}})
    one["image_classifier"], two["image_classifier"] = {"num_threads": 1}, {"num_threads": 8}
    assert differing_keys([flat_settings(one), flat_settings(two)]) == {}
    two["stages"]["tstr"]["trainer"]["max_epochs"] = 4
    assert set(differing_keys([flat_settings(one), flat_settings(two)])) == {"stages.tstr.trainer.max_epochs"}
