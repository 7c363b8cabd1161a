"""What the config may say of a strategy, and what is refused under its key before anything runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedsynth.composition import CONFIG_DIR
from fedsynth.errors import ConfigError
from fedsynth.federated.strategies.options import (
    OPTIONS,
    PERSONAL_STRATEGIES,
    PROTOTYPE_STRATEGIES,
    FedMPAOptions,
    StrategyOptions,
    strategy_options,
)

PATH = "stages.encoder.strategy"
FILES = sorted((CONFIG_DIR / "strategy").glob("*.yaml"))


def written(name: str, **changes: Any) -> dict[str, Any]:
    """``configs/strategy/<name>.yaml`` with some numbers changed."""
    values = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "strategy" / f"{name}.yaml"))
    assert isinstance(values, dict)
    return {**{str(key): value for key, value in values.items()}, **changes}


def refused(values: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        strategy_options(values, PATH)
    return caught.value


def test_every_strategy_has_a_file_of_its_name_and_one_that_chooses_it() -> None:
    assert [path.stem for path in FILES] == sorted(OPTIONS)
    chosen = {path.stem for path in (CONFIG_DIR / "federated").glob("*.yaml")}
    assert chosen == {*OPTIONS, "centralized"}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_file_says_every_number_of_its_strategy(name: str) -> None:
    options = strategy_options(written(name), PATH)
    assert type(options) is OPTIONS[name]
    assert vars(options) == written(name)


def test_the_paper_s_numbers_are_the_defaults_of_fedmpa() -> None:
    options = strategy_options(written("fedmpa"), PATH)
    assert isinstance(options, FedMPAOptions)
    assert options.pull_weights == options.repulsion_weights == [0.07, 0.07, 0.08]
    assert (options.bank_momentum, options.server_momentum) == (0.9, 0.9)
    assert (options.server_learning_rate, options.sensitivity) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("name", "number", "value"),
    [
        ("fedprox", "proximal_weight", -0.1),
        ("fedprox", "proximal_weight", float("nan")),
        ("fedprox", "proximal_weight", float("inf")),
        ("fedproto", "pull_weight", -1.0),
        ("fedgpd", "distillation_weight", -1.0),
        ("fedgpd", "temperature", 0.0),
        ("fedmpa", "pull_weights", [0.1, -0.1, 0.1]),
        ("fedmpa", "repulsion_weights", [0.1, 0.1, float("nan")]),
        ("fedmpa", "repulsion", "wall"),
        ("fedmpa", "repulsion_margin", 0.0),
        ("fedmpa", "repulsion_margin", 2.1),
        ("fedmpa", "bank_momentum", 1.0),
        ("fedmpa", "bank_momentum", -0.1),
        ("fedmpa", "prototype_weighting", "size"),
        ("fedmpa", "aggregation", "median"),
        ("fedmpa", "sensitivity", -1.0),
        ("fedmpa", "softplus", "nowhere"),
        ("fedmpa", "server_momentum", 1.0),
        ("fedmpa", "server_learning_rate", 0.0),
    ],
)
def test_an_impossible_number_is_refused_with_its_key_and_value(name: str, number: str, value: Any) -> None:
    error = refused(written(name, **{number: value}))
    assert error.key == f"{PATH}.{number}"
    assert str(error).startswith(f"{PATH}.{number} must be ")
    assert str(value) in str(error)


@pytest.mark.parametrize("name", ["pull_weights", "repulsion_weights"])
@pytest.mark.parametrize("value", [[], [0.1, 0.1], [0.1] * 4])
def test_fedmpa_wants_one_weight_for_each_of_three_embeddings(name: str, value: list[float]) -> None:
    error = refused(written("fedmpa", **{name: value}))
    assert error.key == f"{PATH}.{name}"
    assert f"{PATH}.{name} must hold three numbers (first modality, second, fused), got {value}" in str(error)


@pytest.mark.parametrize(
    "values", [{"name": "fedsum"}, {"name": None}, {"name": ["fedavg"]}, {}, "fedmpa", None]
)
def test_an_unknown_strategy_is_refused_with_all_there_are(values: Any) -> None:
    error = refused(values)
    assert error.key == f"{PATH}.name"
    assert str(error).startswith(f"{PATH}.name must be one of {', '.join(OPTIONS)}, got ")
    assert f"strategy@{PATH}=NAME" in str(error)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_number_of_another_strategy_is_refused(name: str) -> None:
    error = refused(written(name, momentun=0.5))
    assert str(error).startswith(f"{PATH}.momentun is not a known key.")


@pytest.mark.parametrize("name", [name for name in sorted(OPTIONS) if OPTIONS[name] is not StrategyOptions])
def test_a_number_left_out_is_no_hidden_default(name: str) -> None:
    values = written(name)
    number = list(values)[-1]
    del values[number]
    error = refused(values)
    assert error.key == f"{PATH}.{number}"
    assert f"{PATH}.{number} is missing" in str(error)


@pytest.mark.parametrize("value", [None, "much", [0.1, None, 0.1], [0.1, "much", 0.1], 0.07])
def test_weights_that_are_no_numbers_are_refused(value: Any) -> None:
    error = refused(written("fedmpa", pull_weights=value))
    assert error.key == f"{PATH}.pull_weights"
    assert f"{PATH}.pull_weights" in str(error)


def test_groups_of_strategies_name_strategies() -> None:
    assert {*PROTOTYPE_STRATEGIES, *PERSONAL_STRATEGIES} <= set(OPTIONS)


def test_options_are_known_without_torch() -> None:
    words = "import sys; import fedsynth.federated.strategies.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0
