"""A negative control with a guarantee (T4): moments of training images with Gaussian noise, and samples of them.

Its space, principal components of the pixels of **validation** images, is one that no training image had a part in;
so are its center and its clipping radius. Mean and second moment of the clipped training coordinates leave with the
noise of the analytic Gaussian mechanism, and points are drawn from the normal law of these moments.

Covered: everything drawn, (ε, δ)-DP for replacing one training **record**. NOT covered: a patient of several images,
validation images, and the number of training images. The points are no images worth looking at and nothing is released:
they show what the tests of singling out say of a release that is known to be safe.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.attacks.isolation_baseline import dp_isolation_bound
from fedsynth.attacks.singling_out import IsolationPoint
from fedsynth.models.pixel_pca import fit_pixel_pca
from fedsynth.privacy.budget import GaussianBudget
from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.privacy.sensitivity import second_moment_sensitivity
from fedsynth.seeding import generator
from fedsynth.stages.audit_images.records import AuditRecords
from fedsynth.stages.audit_images.spaces import Space, make_space
from fedsynth.stages.audit_images.spec import AuditImagesSettings
from fedsynth.stages.audit_images.table import Row

# fidelity: isolation-dp-control
#: Of the norms of validation images; longer training coordinates are shortened to it.
RADIUS_QUANTILE = 0.95


def private_delta(num_train: int) -> float:
    """δ = 1/n², so that n δ, what δ adds to the bound on isolation, is 1/n."""
    return 1 / num_train**2


def dp_space(records: AuditRecords, epsilon: float, settings: AuditImagesSettings) -> Space:
    """All image sets in the space of the control, with as many points of it as there are released images."""
    pixels = fit_pixel_pca(records.real["val"].image, settings.num_components)
    size, made = settings.batch_size, records.independent
    real = {split: pixels.features(images.image, size) for split, images in records.real.items()}
    space = make_space(
        f"{pixels.name}_val",
        records,
        real,
        pixels.features(records.released.image, size),
        None if made is None else pixels.features(made.image, size),
    )
    points = dp_sample(
        space.train,
        len(records.released),
        epsilon=epsilon,
        radius=float(space.val.double().norm(dim=1).quantile(RADIUS_QUANTILE)),
        seed=settings.seed,
    )
    return replace(space, dp=points.to(space.train))


def dp_sample(
    train: Float[Tensor, "n d"], num_points: int, *, epsilon: float, radius: float, seed: int
) -> Float[Tensor, "m d"]:
    """Points of the normal law of noisy moments; (ε, 1/n²)-DP under replacing one of the n records.

    Args:
        train: Coordinates; only those shortened to the radius are used.
        num_points: m.
        epsilon: ε, half of it (as Gaussian DP counts) for the mean, half for the second moment.
        radius: Of clipping, known without the records.
        seed: Of the audit; whoever knows it can subtract the noise, so it is for reproduction only.

    Raises:
        PrivacyParameterError: ε or the radius is not positive.
    """
    budget = GaussianBudget(
        epsilon=epsilon,
        delta=private_delta(len(train)),
        shares={"mean": 0.5, "second_moment": 0.5},
        num_clients=1,
        seed_generator=lambda client: generator(seed, "audit", "dp", f"{epsilon:g}", client),
    )
    clipped = clip_to_radius(train.double(), radius)
    total = clipped.sum(0, keepdim=True)
    products = (clipped.T @ clipped).unsqueeze(0)
    mean = budget.release("mean", total, 2 * radius).values[0] / len(train)
    moment = budget.release_symmetric("second_moment", products, second_moment_sensitivity(radius))
    covariance = moment.values[0] / len(train) - torch.outer(mean, mean)
    # What follows reads noisy moments only. Eigenvalues that noise alone would reach are no spread of the images.
    values, vectors = torch.linalg.eigh(covariance)
    noise = moment.std * math.sqrt(2 * len(mean)) / len(train)
    values = torch.where(values > noise, values, 0.0)
    standard = torch.randn(
        num_points, len(mean), dtype=torch.float64, generator=generator(seed, "audit", "dp", "points")
    )
    return mean + (standard * values.sqrt()) @ vectors.T


def bound_row(fixed: IsolationPoint, num_train: int, epsilon: float, space: Space, metric: str) -> Row:
    """How often any adversary isolates after the control, with predicates of the weight these balls have on average.

    The bound n (e^ε w + δ) holds with the mean weight of an adversary's predicates, which the control images estimate.
    """
    delta = private_delta(num_train)
    bound, at_estimate = (
        dp_isolation_bound(num_train, weight, epsilon=epsilon, delta=delta)
        for weight in (fixed.weight_bound, fixed.weight)
    )
    telling = max(0.0, 1 / num_train - delta) / math.exp(min(epsilon, 700.0))
    return Row(
        test="T4",
        space=space.name,
        quantity=f"… at most, by the bound of ({epsilon:g}, {delta:.1e})-DP for any adversary",
        value=bound,
        low=None,
        high=None,
        chance_or_control=fixed.isolating.share,
        note=(
            f"n (e^ε w + δ) at the largest weight the control allows, {fixed.weight_bound:.2g}; at its estimate "
            f"{fixed.weight:.2g} it is {at_estimate:.3g}. Below 1 only for weights below {telling:.1g}; one record, not "
            "one patient; beside it what the balls isolate"
        ),
        metric=metric,
    )
