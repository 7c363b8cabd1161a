"""Fusion, Eqs. (12)-(15): attention and gates against the formulas; what a missing modality may not do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.models.fusion import GatedFusion, MeanFusion, masked_mean
from fedsynth.models.inputs import ModelInputError

MASKS = torch.tensor([[True, True], [True, False], [False, True], [False, False]])


def embeddings(rows: int = 4, dim: int = 128, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=source), torch.randn(rows, dim, generator=source)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_masked_mean_is_the_mean_of_present_tokens(rows, num_tokens, seed):
    source = torch.Generator().manual_seed(seed)
    tokens = torch.randn(rows, num_tokens, 3, generator=source)
    mask = torch.rand(rows, num_tokens, generator=source) < 0.5
    for row in range(rows):
        expected = tokens[row][mask[row]].mean(0) if mask[row].any() else torch.zeros(3)
        torch.testing.assert_close(masked_mean(tokens, mask)[row], expected)


def test_masked_mean_ignores_nan_in_missing_tokens():
    tokens = torch.tensor([[[1.0], [math.nan]]])
    assert masked_mean(tokens, torch.tensor([[True, False]])).item() == 1.0


@pytest.mark.parametrize("training", [True, False])
def test_attention_equals_the_formula_head_by_head(training):
    """Eq. (13) written out: softmax(Q Kᵀ / √d_head + M) V with M = -inf on missing keys."""
    fusion = GatedFusion(dropout=0.0).train(training)
    tokens, mask = fusion.tokens(*embeddings(3), MASKS[:3]), MASKS[:3]
    attended, attention = fusion.attend(tokens, mask)
    weights, bias = fusion.attention.in_proj_weight, fusion.attention.in_proj_bias
    q, k, v = (tokens @ weights.T + bias).view(3, 2, 3, 4, 32).permute(2, 0, 3, 1, 4)  # [b, head, 2, 32]
    hidden = torch.zeros(3, 1, 1, 2).masked_fill(~mask[:, None, None, :], -math.inf)
    expected = torch.softmax(q @ k.mT / math.sqrt(32) + hidden, dim=-1)
    torch.testing.assert_close(attention, expected.mean(1), atol=1e-5, rtol=1e-4)
    values = fusion.attention.out_proj((expected @ v).transpose(1, 2).reshape(3, 2, 128))
    torch.testing.assert_close(attended, values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_fused_vector_equals_the_gated_mixture_pooled_over_present_tokens(training):
    fusion = GatedFusion(dropout=0.0).train(training)
    (image, signal), mask = embeddings(3), MASKS[:3]
    tokens = torch.stack([fusion.image_projection(image), fusion.signal_projection(signal)], dim=1)
    attended, _ = fusion.attend(tokens, mask)
    gates = torch.sigmoid(torch.cat([attended, tokens], -1) @ fusion.gate.weight[0] + fusion.gate.bias)
    mixed = gates[..., None] * attended + (1 - gates[..., None]) * tokens
    expected = masked_mean(fusion.token_head(mixed), mask)
    fused, reported, _ = fusion(image, signal, mask)
    torch.testing.assert_close(fused, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(reported, gates, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_attention_rows_sum_to_one_and_ignore_missing_keys(training):
    _, gates, attention = GatedFusion().train(training)(*embeddings(), MASKS)
    torch.testing.assert_close(attention.sum(-1), torch.ones(4, 2))
    torch.testing.assert_close(attention[1], torch.tensor([[1.0, 0.0], [1.0, 0.0]]), atol=0, rtol=0)
    torch.testing.assert_close(attention[2], torch.tensor([[0.0, 1.0], [0.0, 1.0]]), atol=0, rtol=0)
    assert ((gates > 0) & (gates < 1)).all()


@pytest.mark.parametrize("fusion", [GatedFusion(), MeanFusion()])
def test_record_without_any_modality_fuses_to_zero(fusion):
    fused, _, attention = fusion.eval()(*embeddings(), MASKS)
    assert torch.equal(fused[3], torch.zeros(128))
    assert attention.isfinite().all()


@pytest.mark.parametrize("fusion", [GatedFusion(), MeanFusion()])
@pytest.mark.parametrize("missing", [0, 1])
def test_fused_vector_does_not_depend_on_a_missing_embedding(fusion, missing):
    fusion = fusion.eval()
    pair = list(embeddings())
    mask = torch.tensor([[missing == 1, missing == 0]]).expand(4, 2)
    before = fusion(*pair, mask)[0]
    pair[missing] = embeddings(seed=1)[0] * 100
    assert torch.equal(fusion(*pair, mask)[0], before)
    pair[1 - missing] = embeddings(seed=1)[0]
    assert not torch.allclose(fusion(*pair, mask)[0], before)


def test_mean_fusion_is_gated_fusion_with_closed_gates():
    gated, mean = GatedFusion().eval(), MeanFusion().eval()
    mean.load_state_dict(gated.state_dict(), strict=False)
    torch.nn.init.zeros_(gated.gate.weight)
    torch.nn.init.constant_(gated.gate.bias, -1e4)
    left, right = gated(*embeddings(), MASKS), mean(*embeddings(), MASKS)
    torch.testing.assert_close(left[0], right[0])
    torch.testing.assert_close(left[1], right[1])


def test_parameter_counts_equal_those_of_the_layers():
    linear = 128 * 128 + 128
    mean = 3 * linear + 2 * 128
    assert sum(p.numel() for p in MeanFusion().parameters()) == mean
    assert sum(p.numel() for p in GatedFusion().parameters()) == mean + 4 * linear + 257


@pytest.mark.parametrize("fusion", [GatedFusion(), MeanFusion()])
def test_wrong_input_is_named_in_the_error(fusion):
    image, signal = embeddings()
    with pytest.raises(ModelInputError, match="image embedding must have shape"):
        fusion(image[:, :5], signal, MASKS)
    with pytest.raises(ModelInputError, match="signal embedding must have shape"):
        fusion(image, signal[:2], MASKS)
    with pytest.raises(ModelInputError, match="mask must have shape"):
        fusion(image, signal, MASKS[:, :1])
    with pytest.raises(ModelInputError, match="mask must be boolean"):
        fusion(image, signal, MASKS.float())


def test_impossible_fusions_are_refused():
    with pytest.raises(ModelInputError, match="multiple of num_heads"):
        GatedFusion(token_dim=10, num_heads=4)
    with pytest.raises(ModelInputError, match="dropout"):
        MeanFusion(dropout=1.0)
