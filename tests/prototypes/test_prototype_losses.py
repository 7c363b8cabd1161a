from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from fedsynth.errors import ConfigError, DataError
from fedsynth.prototypes.prototype_losses import (
    class_weights,
    distillation_loss,
    pull_loss,
    repulsion_loss,
    weighted_cross_entropy,
)
from fedsynth.records import InvalidTensorError

seeds = st.integers(0, 2**31)
FORMS = ("hinge", "inverse", "gaussian")
TERMS = {
    "pull": pull_loss,
    "distillation": lambda *a, **k: distillation_loss(*a, temperature=2.0, **k),
    **{f: lambda *a, f=f, **k: repulsion_loss(*a, form=f, margin=1.5, **k) for f in FORMS},
}
terms = pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)


def batch(seed=0, n=12, dim=5, num_classes=3, dtype=torch.float64):
    """z, y, P, known: everything known, all directions in play."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, dim, generator=generator, dtype=dtype).requires_grad_()
    label = torch.randint(num_classes, (n,), generator=generator)
    prototype = torch.randn(num_classes, dim, generator=generator, dtype=dtype)
    return z, label, prototype, torch.ones(num_classes, dtype=torch.bool)


def gradient(loss, z):
    return torch.autograd.grad(loss, z)[0]


# --- weighted cross-entropy ---


def test_class_weights_equal_balanced_weights_of_scikit_learn():
    label = np.repeat([0, 1, 2], [3, 11, 40])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=label)
    np.testing.assert_allclose(class_weights(torch.tensor([3, 11, 40])).numpy(), expected, rtol=1e-7)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any))
def test_class_weights_are_finite_and_give_every_present_class_the_same_total(count):
    weight = class_weights(torch.tensor(count))
    total = weight.double() * torch.tensor(count)
    assert bool(torch.isfinite(weight).all())
    for n_c, w, t in zip(count, weight.tolist(), total.tolist(), strict=True):
        assert t == pytest.approx(sum(count) / len(count) if n_c else 0, rel=1e-6)
        assert n_c > 0 or w == 1


def test_class_weights_refuse_a_client_without_records():
    with pytest.raises(DataError, match="at least one record"):
        class_weights(torch.tensor([0, 0]))
    with pytest.raises(DataError, match=">= 0"):
        class_weights(torch.tensor([-1, 3]))
    with pytest.raises(InvalidTensorError, match="int64"):
        class_weights(torch.tensor([0.5, 1.0]))


def test_weighted_cross_entropy_equals_scikit_learn_before_division_by_the_weights():
    logits, label, _, _ = batch(dim=3)
    weight = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64)
    sample_weight = weight[label].numpy()
    probability = softmax(logits.detach().numpy(), axis=1)
    total = log_loss(label, probability, normalize=False, sample_weight=sample_weight, labels=[0, 1, 2])
    loss = weighted_cross_entropy(logits, label, weight)
    assert loss.item() == pytest.approx(total / len(label), rel=1e-9)
    # torch's own mean divides by the weights that happen to be in the batch.
    torch_mean = F.cross_entropy(logits, label, weight=weight).item()
    assert loss.item() == pytest.approx(torch_mean * sample_weight.sum() / len(label), rel=1e-9)


def test_gradient_of_a_record_does_not_depend_on_the_weights_of_its_batch():
    logits, _, _, _ = batch(n=2, dim=2)
    weight = torch.tensor([0.5, 4.0])
    same, other = (
        gradient(weighted_cross_entropy(logits, torch.tensor([0, c]), weight), logits) for c in (0, 1)
    )
    torch.testing.assert_close(same[0], other[0], rtol=1e-12, atol=0)


def test_weighted_cross_entropy_of_an_empty_batch_is_zero():
    logits = torch.zeros(0, 2, requires_grad=True)
    loss = weighted_cross_entropy(logits, torch.zeros(0, dtype=torch.int64), torch.ones(2))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None


@pytest.mark.parametrize(
    ("logits", "label", "weight", "message"),
    [
        (torch.zeros(2, 2), [0, 2], torch.ones(2), r"\[0, 2\)"),
        (torch.zeros(2, 2), [0], torch.ones(2), "1 for 2"),
        (torch.zeros(2, 2), [0, 1], torch.ones(3), r"class_weight \[class\]"),
        (torch.zeros(2), [0, 1], torch.ones(2), "logits must be"),
    ],
)
def test_weighted_cross_entropy_refuses_what_does_not_fit(logits, label, weight, message):
    with pytest.raises(InvalidTensorError, match=message):
        weighted_cross_entropy(logits, torch.tensor(label), weight)


# --- values against numpy and SciPy ---


@settings(max_examples=20)
@given(seeds)
def test_pull_equals_squared_scipy_distances(seed):
    z, label, prototype, known = batch(seed)
    distance = cdist(z.detach(), prototype, "sqeuclidean")
    expected = distance[np.arange(len(label)), label].mean()
    assert pull_loss(z, label, prototype, known).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(seeds, st.floats(0.1, 2.0))
def test_repulsion_equals_scipy_distances(form, seed, margin):
    z, label, prototype, known = batch(seed)
    if form == "hinge":  # chord length between directions: d² = 2 (1 - cos)
        distance = np.sqrt(2 * np.maximum(cdist(z.detach(), prototype, "cosine"), 0))
        closeness = np.maximum(margin - distance, 0) ** 2
    else:
        squared = cdist(z.detach(), prototype, "sqeuclidean")
        closeness = 1 / (1 + squared) if form == "inverse" else np.exp(-squared)
    closeness[np.arange(len(label)), label] = 0
    loss = repulsion_loss(z, label, prototype, known, form=form, margin=margin)
    assert loss.item() == pytest.approx(closeness.sum() / len(label), rel=1e-7, abs=1e-12)


@settings(max_examples=20)
@given(seeds, st.floats(0.1, 10.0))
def test_distillation_equals_the_soft_cross_entropy_of_scipy(seed, temperature):
    z, label, prototype, known = batch(seed)
    target = softmax(prototype[label].numpy() / temperature, axis=1)
    expected = -(target * log_softmax(z.detach().numpy() / temperature, axis=1)).sum(axis=1).mean()
    loss = distillation_loss(z, label, prototype, known, temperature=temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_hinge_at_sixty_degrees_is_zero_and_at_the_prototype_the_squared_margin():
    prototype, known = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.ones(2, dtype=torch.bool)
    label = torch.tensor([1])
    sixty = torch.tensor([[math.cos(math.pi / 3), math.sin(math.pi / 3)]]) * 7
    assert repulsion_loss(sixty, label, prototype, known).item() == pytest.approx(0, abs=1e-12)
    assert repulsion_loss(prototype[:1] * 5, label, prototype, known, margin=1.5).item() == pytest.approx(
        2.25
    )


@settings(max_examples=20)
@given(seeds, st.floats(0.01, 100))
def test_hinge_sees_directions_only(seed, scale):
    z, label, prototype, known = batch(seed)
    loss = repulsion_loss(z, label, prototype, known, margin=2.0)
    scaled = repulsion_loss(scale * z, label, prototype / scale, known, margin=2.0)
    assert scaled.item() == pytest.approx(loss.item(), rel=1e-9)


@settings(max_examples=20)
@given(seeds, st.floats(-5, 5))
def test_distillation_is_least_at_the_prototype_up_to_a_constant(seed, constant):
    z, label, prototype, known = batch(seed)
    at_prototype = distillation_loss(prototype[label] + constant, label, prototype, known, temperature=2.0)
    target = torch.softmax(prototype[label] / 2.0, dim=1)
    entropy = torch.distributions.Categorical(target).entropy().mean()
    assert at_prototype.item() == pytest.approx(entropy.item(), rel=1e-6)
    assert distillation_loss(z, label, prototype, known, temperature=2.0) > at_prototype


# --- gradients ---


def test_pull_gradient_is_twice_the_difference_over_n():
    z, label, prototype, known = batch()
    expected = 2 * (z - prototype[label]).detach() / len(z)
    torch.testing.assert_close(gradient(pull_loss(z, label, prototype, known), z), expected)


def test_distillation_gradient_is_the_difference_of_softmaxes():
    z, label, prototype, known = batch()
    share, target = torch.softmax(z.detach() / 2, dim=1), torch.softmax(prototype[label] / 2, dim=1)
    loss = distillation_loss(z, label, prototype, known, temperature=2.0)
    torch.testing.assert_close(gradient(loss, z), (share - target) / (2 * len(z)))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(seeds)
def test_descent_on_the_repulsion_leads_away_from_the_wrong_prototype(form, seed):
    z, label, prototype, known = batch(seed, n=1, num_classes=2)
    step = -gradient(repulsion_loss(z, label, prototype, known, form=form, margin=2.5), z)

    def distance(at):
        wrong = prototype[1 - label]
        return (F.normalize(at) - F.normalize(wrong) if form == "hinge" else at - wrong).norm()

    # The step may be tiny (a Gaussian far away): follow its direction a little.
    moved = z.detach() + 1e-4 * step / step.norm()
    assert distance(moved) > distance(z.detach())


@terms
def test_gradients_equal_finite_differences(term):
    z, label, prototype, known = batch(n=4)
    present = torch.tensor([True, True, False, True])
    assert torch.autograd.gradcheck(lambda x: term(x, label, prototype, known, present), (z,))


@pytest.mark.parametrize("start", ["prototype", "multiple", "zero"])
@pytest.mark.parametrize("form", FORMS)
def test_gradient_is_finite_where_the_direction_is_undefined(form, start):
    prototype = torch.tensor([[3.0, 4.0], [0.0, 0.0]])  # the second has no direction
    z = {"prototype": prototype[:1], "multiple": 2 * prototype[:1], "zero": torch.zeros(1, 2)}[start]
    z = z.repeat(2, 1).requires_grad_()
    known = torch.ones(2, dtype=torch.bool)
    loss = repulsion_loss(z, torch.tensor([0, 1]), prototype, known, form=form, margin=1.5)
    slope = gradient(loss, z)
    assert bool(torch.isfinite(slope).all())
    assert float(slope.abs().max()) < 10  # and not the 1e12 of dividing by a small constant


@terms
def test_prototypes_get_no_gradient(term):
    z, label, prototype, known = batch()
    prototype.requires_grad_()
    term(z, label, prototype, known).backward()
    assert z.grad is not None
    assert prototype.grad is None


# --- which records count ---


@terms
@settings(max_examples=15)
@given(seed=seeds)
def test_order_of_the_batch_does_not_matter(term, seed):
    z, label, prototype, known = batch(seed)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
    expected = term(z, label, prototype, known).item()
    assert term(z[order], label[order], prototype, known).item() == pytest.approx(expected, rel=1e-12)


@terms
@settings(max_examples=15)
@given(seed=seeds, missing=st.lists(st.booleans(), min_size=12, max_size=12))
def test_absent_records_are_as_if_they_were_not_there(term, seed, missing):
    z, label, prototype, known = batch(seed)
    present = ~torch.tensor(missing)
    expected = term(z[present], label[present], prototype, known).item()
    holes = torch.where(present.unsqueeze(1), z.detach(), torch.nan).requires_grad_()
    loss = term(holes, label, prototype, known, present)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    slope = gradient(loss, holes)
    assert bool(torch.isfinite(slope).all())
    assert bool((slope[~present] == 0).all())


@terms
def test_batch_without_any_record_that_counts_gives_an_exact_differentiable_zero(term):
    z, label, prototype, known = batch()
    nobody = torch.zeros(len(z), dtype=torch.bool)
    empty = torch.zeros(0, 5, dtype=torch.float64, requires_grad=True)
    cases = [
        (z, term(z, label, prototype, known, nobody)),
        (z, term(z, label, prototype, torch.zeros_like(known))),
        (empty, term(empty, label[:0], prototype, known)),
    ]
    for inputs, loss in cases:
        assert loss.item() == 0
        assert bool((gradient(loss, inputs) == 0).all())


@pytest.mark.parametrize("name", ["pull", "distillation"])
def test_records_of_an_unknown_class_do_not_count(name):
    z, label, prototype, _ = batch()
    known = torch.tensor([True, False, True])
    rest = label != 1
    assert 0 < int(rest.sum()) < len(label)
    expected = TERMS[name](z[rest], label[rest], prototype, known).item()
    assert TERMS[name](z, label, prototype, known).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_repulsion_needs_a_wrong_class_that_is_known_and_not_its_own(form):
    z, label, prototype, _ = batch(num_classes=2)
    known = torch.tensor([True, False])  # only records of class 1 have a wrong prototype
    assert 0 < int((label == 1).sum()) < len(label)
    everything = torch.ones(2, dtype=torch.bool)
    expected = TERMS[form](z[label == 1], label[label == 1], prototype, everything).item()
    assert TERMS[form](z, label, prototype, known).item() == pytest.approx(expected, rel=1e-12)


@terms
def test_half_precision_embeddings_are_compared_in_the_precision_of_the_prototypes(term):
    z, label, prototype, known = batch(dtype=torch.float32)
    half = z.detach().bfloat16()
    assert term(half, label, prototype, known).dtype == torch.float32
    assert term(half, label, prototype, known) == term(half.float(), label, prototype, known)


# --- refusals ---


@terms
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": torch.zeros(12, 4)}, "one dim"),
        ({"embedding": torch.zeros(5)}, "one dim"),
        ({"label": torch.zeros(11, dtype=torch.int64)}, "11 for 12"),
        ({"label": torch.full((12,), 3)}, r"\[0, 3\)"),
        ({"label": torch.zeros(12)}, "int64"),
        ({"known": torch.ones(2, dtype=torch.bool)}, "known"),
        ({"known": torch.ones(3)}, "boolean"),
        ({"present": torch.ones(3, dtype=torch.bool)}, "present"),
    ],
)
def test_terms_refuse_what_does_not_fit(term, change, message):
    arguments = dict(zip(("embedding", "label", "prototype", "known"), batch(), strict=True)) | change
    with pytest.raises(InvalidTensorError, match=message):
        term(**arguments)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "2", True])
def test_margin_and_temperature_must_be_positive(value):
    with pytest.raises(ConfigError, match="margin"):
        repulsion_loss(*batch(), margin=value)
    with pytest.raises(ConfigError, match="temperature"):
        distillation_loss(*batch(), temperature=value)


def test_unknown_form_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"hinge.*'cosine'"):
        repulsion_loss(*batch(), form="cosine")
