"""Masked sequence layers against PyTorch's packed sequences and the formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsynth.models.inputs import ModelInputError
from fedsynth.models.sequences import AdditiveAttention, MaskedBiLSTM, check_lengths, length_mask

LENGTH = torch.tensor([7, 1, 4])


def steps(dim: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(3, 7, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def packed_twin(lstm: MaskedBiLSTM, input_dim: int, hidden_dim: int) -> nn.LSTM:
    """``nn.LSTM`` with biases, whose weights are those of the masked one: the last input column is the bias."""
    twin = nn.LSTM(
        input_dim,
        hidden_dim // 2,
        len(lstm.layers),
        batch_first=True,
        bidirectional=True,
        dtype=torch.float64,
    )
    with torch.no_grad():
        for number, layer in enumerate(lstm.layers):
            for side in ("", "_reverse"):
                weight = getattr(layer, f"weight_ih_l0{side}")
                getattr(twin, f"weight_ih_l{number}{side}").copy_(weight[:, :-1])
                getattr(twin, f"bias_ih_l{number}{side}").copy_(weight[:, -1])
                getattr(twin, f"bias_hh_l{number}{side}").zero_()
                getattr(twin, f"weight_hh_l{number}{side}").copy_(getattr(layer, f"weight_hh_l0{side}"))
    return twin


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # float32 takes another kernel on CPU
def test_bidirectional_lstm_equals_that_on_packed_sequences(num_layers: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    lstm = MaskedBiLSTM(5, 6, num_layers).to(dtype)
    twin, x, mask = packed_twin(lstm, 5, 6).to(dtype), steps(5, dtype=dtype), length_mask(LENGTH, 7)
    packed = pack_padded_sequence(x, LENGTH, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(twin(packed)[0], batch_first=True, total_length=7)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12  # some 10 units of rounding
    torch.testing.assert_close(lstm(x, mask)[mask], expected[mask], atol=tolerance, rtol=0)


def test_padding_leaves_the_states_of_real_steps_alone_to_the_last_bit() -> None:
    lstm, x, mask = MaskedBiLSTM(5, 6, 2), steps(5), length_mask(LENGTH, 7)
    before = lstm(x, mask)
    spoiled = torch.cat([torch.where(mask.unsqueeze(-1), x, torch.nan), torch.full((3, 9, 5), 1e30)], dim=1)
    after = lstm(spoiled, length_mask(LENGTH, 16))
    assert torch.equal(after[:, :7][mask], before[mask])
    assert after.isfinite().all()


def test_both_directions_reach_every_step() -> None:
    """Output s depends on input r for all r, s below the length, and on no other."""
    lstm, mask = MaskedBiLSTM(5, 6), length_mask(LENGTH, 7)
    x = steps(5).requires_grad_()
    out = lstm(x, mask)
    for step in range(7):
        (gradient,) = torch.autograd.grad(out[2, step].sum(), x, retain_graph=True)
        touched = gradient[2].abs().sum(-1) > 0
        if step < 4:
            assert touched.tolist() == [True] * 4 + [False] * 3
        assert (gradient[:2] == 0).all()


def test_additive_attention_equals_the_formula_record_by_record() -> None:
    pool, x, mask = AdditiveAttention(4).double(), steps(4, dtype=torch.float64), length_mask(LENGTH, 7)
    pooled, weights = pool(x, mask)
    for row, length in enumerate(LENGTH.tolist()):
        h = x[row, :length]
        scores = torch.tanh(h @ pool.hidden.weight.T + pool.hidden.bias) @ pool.score.weight[0]
        alpha = scores.exp() / scores.exp().sum()
        torch.testing.assert_close(weights[row, :length], alpha)
        assert (weights[row, length:] == 0).all()
        torch.testing.assert_close(pooled[row], (alpha[:, None] * h).sum(0))


def test_mask_counts_the_length() -> None:
    assert torch.equal(length_mask(LENGTH, 9).sum(1), LENGTH)
    assert not (length_mask(LENGTH, 9).int().diff(dim=1) > 0).any()  # True first, then False


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (torch.tensor([1, 0, 2]), "from 0 to 2"),
        (torch.tensor([1, 8, 2]), r"must lie in \[1, 7\]"),
        (torch.tensor([1, 2]), "must have shape"),
        (torch.tensor([1.0, 2.0, 3.0]), "int64"),
    ],
)
def test_impossible_lengths_are_refused(length: torch.Tensor, message: str) -> None:
    with pytest.raises(ModelInputError, match=message):
        check_lengths("audio_length", length, 3, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 7), "hidden_dim must be even"),
        ((0, 6), "at least 1"),
        ((5, 6, 0), "at least 1"),
        ((5, 6, 1, 1.0), "dropout"),
    ],
)
def test_impossible_layers_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ModelInputError, match=message):
        MaskedBiLSTM(*arguments)
    with pytest.raises(ModelInputError, match="dim"):
        AdditiveAttention(0)
