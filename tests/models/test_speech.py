"""The speech classifier: padding and batch mates do nothing, the fusion is its formula, every weight learns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.models.inputs import ModelInputError
from fedsynth.models.speech import SequenceEncoder, SpeechClassifier, SpeechOutput
from fedsynth.models.speech_fusion import GatedCrossAttention

SIZES: dict[str, Any] = {
    "audio_dim": 5,
    "text_dim": 6,
    "hidden_dim": 8,
    "embedding_dim": 12,
    "num_heads": 2,
    "dropout": 0.3,
    "num_layers": 1,
}
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def network(**changes: Any) -> SpeechClassifier:
    torch.manual_seed(0)
    return SpeechClassifier(**(SIZES | changes)).eval()


def batch(rows: int = 4, seed: int = 0, frames: int = 9, utterances: int = 5) -> Batch:
    source = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, frames, 5, generator=source),
        torch.randint(1, frames + 1, (rows,), generator=source),
        torch.randn(rows, utterances, 6, generator=source),
        torch.randint(1, utterances + 1, (rows,), generator=source),
    )


def spoil(inputs: Batch, value: float, more: int = 0) -> Batch:
    """The same records with another value in padding, and ``more`` steps of it."""
    audio, audio_length, text, text_length = inputs
    spoiled = []
    for steps, length in ((audio, audio_length), (text, text_length)):
        longer = torch.cat([steps, steps.new_zeros(len(steps), more, steps.shape[2])], dim=1)
        padding = torch.arange(longer.shape[1]) >= length.unsqueeze(1)
        spoiled.append(longer.masked_fill(padding.unsqueeze(-1), value))
    return spoiled[0], audio_length, spoiled[1], text_length


def flat(output: SpeechOutput, frames: int, utterances: int) -> torch.Tensor:
    """All numbers of a record in one row; attention up to the given numbers of steps."""
    attention = [output.attention["audio"][:, :frames], output.attention["text"][:, :utterances]]
    return torch.cat([output.logits, output.gates, *output.embeddings.values(), *attention], dim=1)


@given(st.integers(1, 6), st.integers(0, 2**31), st.integers(0, 30), st.sampled_from([math.nan, -1e30, 7.0]))
@settings(max_examples=40, deadline=None)
def test_padding_changes_nothing_whatever_it_holds(rows: int, seed: int, more: int, value: float) -> None:
    for num_layers in (1, 2):
        model, inputs = network(num_layers=num_layers), batch(rows, seed)
        before = flat(model(*inputs), 9, 5)
        after = model(*spoil(inputs, value, more))
        torch.testing.assert_close(flat(after, 9, 5), before, atol=1e-6, rtol=0)
        assert (after.attention["audio"][:, 9:] == 0).all()


def test_a_record_does_not_depend_on_its_batch() -> None:
    model = network(dropout=0.0).train()
    audio, audio_length, text, text_length = inputs = batch()
    together = flat(model(*inputs), 9, 5)
    for row in range(4):
        frames, utterances = int(audio_length[row]), int(text_length[row])
        one = slice(row, row + 1)
        alone = model(audio[one, :frames], audio_length[one], text[one, :utterances], text_length[one])
        padded = torch.zeros(1, 9 + 5)
        padded[0, :frames] = alone.attention["audio"][0]
        padded[0, 9 : 9 + utterances] = alone.attention["text"][0]
        rest = torch.cat([alone.logits, alone.gates, *alone.embeddings.values(), padded], dim=1)
        torch.testing.assert_close(rest[0], together[row], atol=1e-5, rtol=0)


def test_nan_in_padding_reaches_no_gradient() -> None:
    gradients = []
    for value in (0.0, math.nan):
        model = network()
        model(*spoil(batch(), value, 3)).logits.square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for clean, spoiled in zip(*gradients, strict=True):
        torch.testing.assert_close(spoiled, clean, atol=1e-6, rtol=0)


def test_cross_entropy_alone_trains_every_weight() -> None:
    model = network(num_layers=2, dropout=0.0).train()
    audio, _, text, _ = batch()
    output = model(audio, torch.full((4,), 9), text, torch.full((4,), 5))
    torch.nn.functional.cross_entropy(output.logits, torch.tensor([0, 1, 0, 1])).backward()
    # A constant added to every key changes no softmax, so the key bias has no gradient.
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    for side in (model.fusion.audio_side, model.fusion.text_side):
        assert side.attention.in_proj_bias.grad[8:16].abs().max() < 1e-6  # of 24: queries, keys, values


def test_embeddings_read_their_own_modality_and_the_fused_one_reads_both() -> None:
    inputs = batch()
    model, audio, text = network(), inputs[0].requires_grad_(), inputs[2].requires_grad_()
    output = model(audio, inputs[1], text, inputs[3])
    reads = {}
    for name, embedding in output.embeddings.items():
        found = torch.autograd.grad(embedding.sum(), (audio, text), allow_unused=True, retain_graph=True)
        reads[name] = [gradient is not None and bool(gradient.abs().sum() > 0) for gradient in found]
    assert reads == {"audio": [True, False], "text": [False, True], "fused": [True, True]}


def test_fusion_equals_the_formula_record_by_record() -> None:
    """Unpadded, with softmax(Q Kᵀ / √d_head) V written out head by head."""
    torch.manual_seed(0)
    encoders = [SequenceEncoder(dim, 8, 12, 1, 0.0).double().eval() for dim in (5, 6)]
    fusion = GatedCrossAttention(8, 12, 2).double().eval()
    audio, audio_length, text, text_length = batch()
    encoded = [encoders[0](audio.double(), audio_length), encoders[1](text.double(), text_length)]
    fused, gates = fusion(*encoded)
    for row in range(4):
        a, t = (e.steps[row][e.mask[row]] for e in encoded)
        parts = [
            encoded[0].embedding[row] + cross_attention(fusion.audio_side, a, t),
            encoded[1].embedding[row] + cross_attention(fusion.text_side, t, a),
        ]
        gate = torch.sigmoid(fusion.gate.weight @ torch.cat(parts) + fusion.gate.bias)
        torch.testing.assert_close(gates[row], gate)
        torch.testing.assert_close(fused[row], gate * parts[0] + (1 - gate) * parts[1])


def cross_attention(side: Any, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    weight, bias = side.attention.in_proj_weight, side.attention.in_proj_bias
    q, k, v = (
        (x @ weight[i : i + 8].T + bias[i : i + 8]).view(-1, 2, 4).transpose(0, 1)  # [head, steps, 4]
        for x, i in ((own, 0), (other, 8), (other, 16))
    )
    attended = (torch.softmax(q @ k.mT / math.sqrt(4), dim=-1) @ v).transpose(0, 1).reshape(-1, 8)
    mixed = own + attended @ side.attention.out_proj.weight.T + side.attention.out_proj.bias
    mixed = (mixed - mixed.mean(1, keepdim=True)) / (mixed.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    scores = torch.tanh(mixed @ side.pool.hidden.weight.T + side.pool.hidden.bias) @ side.pool.score.weight[0]
    return side.projection.weight @ (scores.softmax(0) @ mixed) + side.projection.bias


def test_outputs_have_their_shapes_and_sums() -> None:
    output = network()(*batch())
    assert output.logits.shape == (4, 2)
    assert list(output.embeddings) == ["audio", "text", "fused"]
    assert all(embedding.shape == (4, 12) for embedding in output.embeddings.values())
    assert output.gates.shape == (4, 12)
    assert ((output.gates > 0) & (output.gates < 1)).all()
    for weights in output.attention.values():
        torch.testing.assert_close(weights.sum(1), torch.ones(4))
    model = network()
    expected = output.embeddings["fused"] @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(output.logits, expected)


def test_one_segment_of_one_frame_and_one_utterance_is_enough() -> None:
    one = torch.ones(1, dtype=torch.int64)
    model = network().train()
    output = model(torch.randn(1, 1, 5), one, torch.randn(1, 1, 6), one)
    assert output.attention["audio"].tolist() == output.attention["text"].tolist() == [[1.0]]
    output.logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_evaluation_is_deterministic_and_training_drops() -> None:
    model, inputs = network(), batch()
    assert torch.equal(model(*inputs).logits, model(*inputs).logits)
    model.train()
    assert not torch.equal(model(*inputs).logits, model(*inputs).logits)


def test_last_dropout_spares_the_embedding_that_prototypes_are_made_of() -> None:
    model = network().train()
    model.classifier.weight.data.fill_(1.0)
    model.classifier.bias.data.zero_()
    output = model(*batch(64))
    fused, kept = output.embeddings["fused"], output.logits[:, 0]
    assert (fused != 0).all()
    assert not torch.allclose(kept, fused.sum(1), atol=1e-3)


def test_order_of_frames_matters() -> None:
    audio, _, text, text_length = batch()
    model, full = network(), torch.full((4,), 9)
    forward, backward = (model(x, full, text, text_length) for x in (audio, audio.flip(1)))
    assert (forward.embeddings["audio"] - backward.embeddings["audio"]).abs().max() > 1e-3


def test_all_of_the_state_can_be_averaged() -> None:
    model = network()
    assert not list(model.buffers())
    assert all(tensor.is_floating_point() for tensor in model.state_dict().values())


def test_parameter_count_is_that_of_the_layers() -> None:
    f, d, h, e = 23, 256, 64, 128
    model = network(audio_dim=f, text_dim=d, hidden_dim=h, embedding_dim=e, num_heads=4)
    pool = h * h + 2 * h
    lstm = 2 * 4 * (h // 2) * (h + 1 + h // 2)
    encoders = sum((dim + 1) * h + 2 * h + lstm + pool + (h + 1) * e for dim in (f, d))
    sides = 2 * (4 * (h * h + h) + 2 * h + pool + (h + 1) * e)
    expected = encoders + sides + (2 * e + 1) * e + (e + 1) * 2
    assert sum(p.numel() for p in model.parameters()) == expected == 184_770


def test_learns_what_neither_modality_tells_alone() -> None:
    """Label = whether the signs of an audio and a text feature agree: each is independent of it alone."""
    model = network(dropout=0.0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    audio, audio_length, text, text_length = batch(32)
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).repeat(8, 1)
    audio[..., 0], text[..., 0] = 2 * signs[:, :1], 2 * signs[:, 1:]
    label = (signs.prod(1) > 0).long()
    for _ in range(40):
        logits = model(audio, audio_length, text, text_length).logits
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, label).backward()
        optimizer.step()
    assert (logits.argmax(1) == label).float().mean() == 1.0


@pytest.mark.gpu
def test_padding_changes_nothing_on_a_gpu() -> None:
    model = network(num_layers=2).cuda()
    before, after = (
        flat(model(*(x.cuda() for x in inputs)), 9, 5) for inputs in (batch(), spoil(batch(), math.nan, 7))
    )
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)


def test_wrong_input_is_named_in_the_error() -> None:
    model, (audio, audio_length, text, text_length) = network(), batch()
    cases: list[tuple[str, tuple]] = [
        ("audio must have shape", (audio[..., :4], audio_length, text, text_length)),
        ("text must have shape", (audio, audio_length, text[:3], text_length)),
        ("audio must be a floating-point", (audio.long(), audio_length, text, text_length)),
        ("audio_length must lie in", (audio, audio_length + 9, text, text_length)),
        ("text_length must lie in", (audio, audio_length, text, text_length * 0)),
        ("text_length must be an int64", (audio, audio_length, text, text_length.float())),
        ("audio_length must have shape", (audio, audio_length[:2], text, text_length)),
        ("at least one segment", (audio[:0], audio_length[:0], text[:0], text_length[:0])),
    ]
    for message, inputs in cases:
        with pytest.raises(ModelInputError, match=message):
            model(*inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_dim": 7}, "even"),
        ({"hidden_dim": 10, "num_heads": 4}, "multiple of num_heads"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        *(({name: 0}, name) for name in SIZES if name != "dropout"),
    ],
)
def test_impossible_networks_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelInputError, match=message):
        network(**change)
