"""The multimodal classifier: a missing modality has no influence, in either mode and through no path."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from fedsynth.models.encoders import ImageEncoder, SignalEncoder
from fedsynth.models.fusion import GatedFusion, MeanFusion
from fedsynth.models.fusion_classifier import FusionClassifier
from fedsynth.models.inputs import ModelInputError

MASK = torch.tensor([[True, True], [True, False], [False, True], [True, True], [False, True]])


def classifier(
    missing: str = "zero", fusion: type = GatedFusion, normalization: str = "batch"
) -> FusionClassifier:
    torch.manual_seed(0)
    return FusionClassifier(
        ImageEncoder(channels=(4, 8), embedding_dim=16, normalization=normalization),
        SignalEncoder(channels=(4, 8), kernel_sizes=(5, 3), embedding_dim=16, normalization=normalization),
        fusion(image_dim=16, signal_dim=16, token_dim=16, dropout=0.0),
        latent_dim=6,
        missing=missing,
    )


def batch(seed: int = 0, rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, 12, 12, generator=source), torch.randn(rows, 1, 32, generator=source)


def assert_equal_outputs(left, right, **tolerance) -> None:
    for field in dataclasses.fields(left):
        torch.testing.assert_close(getattr(left, field.name), getattr(right, field.name), **tolerance)


@pytest.mark.parametrize("junk", [100.0, math.nan, math.inf])
@pytest.mark.parametrize("missing", ["zero", "skip"])
@pytest.mark.parametrize("fusion", [GatedFusion, MeanFusion])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_depends_on_a_missing_input(junk, missing, fusion, training):
    image, ecg = batch()
    spoiled_image = torch.where(MASK[:, 0].view(-1, 1, 1, 1), image, junk)
    spoiled_ecg = torch.where(MASK[:, 1].view(-1, 1, 1), ecg, junk)
    first, second = (classifier(missing, fusion).train(training) for _ in range(2))
    clean, spoiled = first(image, ecg, MASK), second(spoiled_image, spoiled_ecg, MASK)
    assert_equal_outputs(clean, spoiled, atol=0, rtol=0)
    for left, right in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(left, right)
    clean.logits.square().sum().backward()
    spoiled.logits.square().sum().backward()
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        if left.grad is not None:
            assert torch.equal(left.grad, right.grad)
            assert left.grad.isfinite().all()


def test_zero_and_skip_agree_in_evaluation_mode():
    zero, skip = classifier("zero").eval(), classifier("skip").eval()
    assert_equal_outputs(zero(*batch(), MASK), skip(*batch(), MASK), atol=1e-5, rtol=1e-4)


def test_skip_keeps_missing_inputs_out_of_batch_norm_and_zero_does_not():
    """Training on the present images alone moves BatchNorm's buffers exactly as "skip" does."""
    image, ecg = batch()
    skip, zero, alone = classifier("skip"), classifier("zero"), classifier()
    skip(image, ecg, MASK)
    zero(image, ecg, MASK)
    alone.image_encoder(image[MASK[:, 0]])
    moved = dict(alone.image_encoder.named_buffers())
    for name, buffer in skip.image_encoder.named_buffers():
        assert torch.equal(buffer, moved[name])
    polluted = dict(zero.image_encoder.named_buffers())
    assert not torch.equal(polluted["blocks.1.running_var"], moved["blocks.1.running_var"])


@pytest.mark.parametrize("missing", ["zero", "skip"])
@pytest.mark.parametrize("column", [0, 1])
def test_a_batch_may_lack_one_modality_altogether(missing, column):
    mask = torch.zeros(5, 2, dtype=torch.bool)
    mask[:, column] = True
    out = classifier(missing)(*batch(), mask)
    assert out.logits.isfinite().all()
    assert torch.equal(out.attention, mask.float()[:, None, :].expand(5, 2, 2))


def test_record_without_modalities_gets_the_logits_of_the_zero_vector():
    model = classifier().eval()
    out = model(*batch(), torch.zeros(5, 2, dtype=torch.bool))
    expected = model.classifier(model.latent_head(torch.zeros(1, 16))).expand(5, 2)
    torch.testing.assert_close(out.logits, expected)


def test_latent_head_is_linear_and_logits_are_linear_in_the_latent():
    """Eq. (16). A closing LayerNorm would pin the norm of every latent, which the paper's norms rule out."""
    model = classifier().eval()
    out = model(*batch(), MASK)
    torch.testing.assert_close(out.logits, model.classifier(out.latent))
    assert isinstance(model.latent_head, nn.Linear)
    assert out.latent.norm(dim=1).std() > 1e-3


def test_paper_sized_classifier_has_the_parts_parameter_count_and_shapes():
    model = FusionClassifier(ImageEncoder(), SignalEncoder(), GatedFusion())
    parts = [model.image_encoder, model.signal_encoder, model.fusion]
    inner = sum(p.numel() for part in parts for p in part.parameters())
    assert sum(p.numel() for p in model.parameters()) == inner + 128 * 64 + 64 + 64 * 2 + 2
    source = torch.Generator().manual_seed(0)
    image, ecg = torch.randn(3, 1, 28, 28, generator=source), torch.randn(3, 1, 256, generator=source)
    out = model(image, ecg, MASK[:3])
    shapes = {field.name: tuple(getattr(out, field.name).shape) for field in dataclasses.fields(out)}
    assert shapes == {
        "latent": (3, 64), "logits": (3, 2), "gates": (3, 2), "attention": (3, 2, 2), "image": (3, 128), "ecg": (3, 128),
    }  # fmt: skip


@pytest.mark.parametrize("normalization", ["group", "batch"])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_opacus_per_record_gradients_sum_to_the_batch_gradient(normalization):
    """Opacus errs on channels_last activations: this fails if an encoder without BatchNorm makes some."""
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    plain = ModuleValidator.fix(classifier(normalization=normalization))  # attention becomes Opacus' own
    private = GradSampleModule(copy.deepcopy(plain), loss_reduction="sum")
    image, ecg = batch()
    image = image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for model in (plain, private):
        model(image, ecg, MASK).logits.square().sum().backward()
    for (name, parameter), wrapped in zip(
        plain.named_parameters(), private._module.parameters(), strict=True
    ):
        summed = wrapped.grad_sample.sum(0)
        assert torch.allclose(summed, parameter.grad, atol=1e-4, rtol=1e-3), name


def test_wrong_input_is_named_in_the_error():
    model, (image, ecg) = classifier(), batch()
    with pytest.raises(ModelInputError, match="image must have shape"):
        model(image[:, 0], ecg, MASK)
    with pytest.raises(ModelInputError, match="ecg must have shape"):
        model(image, ecg[:2], MASK)
    with pytest.raises(ModelInputError, match="floating-point"):
        model((image > 0), ecg, MASK)
    with pytest.raises(ModelInputError, match="mask must be boolean"):
        model(image, ecg, MASK.long())


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ModelInputError, match="set their embedding_dim"):
        FusionClassifier(ImageEncoder(embedding_dim=64), SignalEncoder(), GatedFusion())
    with pytest.raises(ModelInputError, match="must have an integer attribute embedding_dim"):
        FusionClassifier(nn.Identity(), SignalEncoder(), GatedFusion())
    with pytest.raises(ModelInputError, match="missing must be"):
        classifier(missing="ignore")
