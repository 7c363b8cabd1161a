"""Stored weights: what is loaded, what is refused, and that the digest is of the weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedsynth.errors import ConfigError
from fedsynth.models.weight_files import load_weights, read_weights, weights_digest

KEY = "image_encoder.weights"


def network(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.Conv2d(width, 2, 1))


@pytest.mark.parametrize(
    "wrap", [lambda state: state, lambda state: {"state_dict": state}, lambda state: {"model": state}]
)
def test_a_checkpoint_gives_its_tensors_however_it_wraps_them(tmp_path: Path, wrap: Any) -> None:
    state = network().state_dict()
    torch.save(wrap(state), tmp_path / "weights.pth")
    held = read_weights(tmp_path / "weights.pth", KEY)
    assert held.keys() == state.keys()
    assert all(torch.equal(held[name], state[name]) for name in state)


def test_both_file_types_give_the_same_tensors(tmp_path: Path) -> None:
    state = dict(network().state_dict())
    torch.save(state, tmp_path / "a.pt")
    save_file(state, tmp_path / "a.safetensors")
    first, second = (read_weights(tmp_path / f"a.{end}", KEY) for end in ("pt", "safetensors"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


class Dangerous:
    """Runs code when unpickled by a careless reader."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Dangerous, "ran", True)


def test_a_file_that_holds_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"weight": Dangerous()}, tmp_path / "weights.pth")
    Dangerous.ran = False
    with pytest.raises(
        ConfigError, match="cannot be read as weights: it holds other objects than tensors"
    ) as caught:
        read_weights(tmp_path / "weights.pth", KEY)
    assert not Dangerous.ran
    # torch's own words advise to load it all the same.
    assert "weights_only" not in str(caught.value)
    assert "trust" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is none at"),
        (b"no weights", "or is no checkpoint"),
        (b"", "is empty"),
        ({"a": 1}, "no named tensors"),
    ],
)
def test_absent_damaged_and_empty_files_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=message) as error:
        read_weights(path, KEY)
    assert error.value.key == KEY


def test_a_damaged_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match="cannot be read as weights: SafetensorError") as error:
        read_weights(tmp_path / "weights.safetensors", KEY)
    assert error.value.key == KEY


def test_loading_leaves_the_unused_head_and_takes_all_else() -> None:
    source, target = network(), network()
    head = target[2].weight.clone()
    weights = {f"module.{name}": value for name, value in source.state_dict().items()}
    weights["module.2.extra"] = torch.zeros(1)
    load_weights(target, weights, unused=("2.",), key=KEY, architecture="two convolutions")
    assert torch.equal(target[0].weight, source[0].weight)
    assert torch.equal(target[2].weight, head)


def test_every_kind_of_misfit_is_named() -> None:
    weights = dict(network(5).state_dict())
    del weights["0.bias"]
    weights["3.weight"] = torch.zeros(1)
    with pytest.raises(
        ConfigError, match=r"1 absent \(0\.bias\); 1 unknown \(3\.weight\); 6 of another shape"
    ):
        load_weights(network(), weights, unused=(), key=KEY, architecture="two convolutions")


def test_old_checkpoints_without_batch_counters_are_accepted() -> None:
    weights = {name: value for name, value in network().state_dict().items() if "num_batches" not in name}
    target = network()
    load_weights(target, weights, unused=(), key=KEY, architecture="two convolutions")
    assert torch.equal(target[0].weight, weights["0.weight"])


def test_digest_is_of_names_and_values() -> None:
    first, second = network(), network()
    assert weights_digest(first) != weights_digest(second)
    second.load_state_dict(first.state_dict())
    assert weights_digest(first) == weights_digest(second)
    with torch.no_grad():
        second[2].bias[0] = torch.nextafter(second[2].bias[0], torch.tensor(9.0))
    assert weights_digest(first) != weights_digest(second)
