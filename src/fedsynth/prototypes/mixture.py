"""From aligned releases to one Gaussian mixture per class, and its samples: FedDP-PALD Eqs. (24)-(25).

| symbol    | name      | shape                    |
|-----------|-----------|--------------------------|
| n^a, N    | counts, mass | [client component], [component] |
| μ^a, Σ^a  | means, variances | [client component dim], Σ diagonal |
| π̃, μ̃, Σ̃ | weights, means, variances of the mixture | [component], [component dim] |

All of it is post-processing of the release: it costs no privacy beyond what the release has spent, and
inherits what the release leaves uncovered (counts, variances).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal

from fedsynth.privacy.parameters import PrivacyParameterError, check_count
from fedsynth.prototypes.alignment import align_release
from fedsynth.records import InvalidTensorError, Mixture, ShardRelease, check_tensor


class Components(NamedTuple):
    """The mixture of one class."""

    weights: Float[Tensor, " component"]
    means: Float[Tensor, "component dim"]
    variances: Float[Tensor, "component dim"]


def aggregate(
    counts: Shaped[Tensor, "client component"],
    means: Float[Tensor, "client component dim"],
    variances: Float[Tensor, "client component dim"],
    *,
    floor: float = 1e-6,
    noise_std: Float[Tensor, "client component"] | None = None,
) -> Components:
    """Sample-mass aggregation of one class over its clients.

    Implements FedDP-PALD Eq. (24), the law of total variance: with N = Σ_k n^a and shares n^a / N,
    π̃ = N / Σ N,  μ̃ = Σ_k share μ^a,  Σ̃ = Σ_k share [Σ^a + (μ^a - μ̃)²]  (diagonal).

    The second term is the variation between clients. The noise of the means is part of it: it inflates the
    term by Σ_k share (1 - share) σ_k² in expectation (:func:`between_inflation`). As in the paper nothing is
    subtracted, unless ``noise_std`` is given; the corrected term is kept from falling below 0.

    Args:
        counts: n^a, records per client and aligned component; integers or floats, ≥ 0.
        means: μ^a. Where the count is 0 the value is ignored.
        variances: Diagonal of Σ^a, ≥ 0.
        floor: Smallest variance returned, ≥ 0; smaller ones are raised to it.
        noise_std: σ of every mean, ≥ 0: its known part of the variation is subtracted.

    Returns:
        Weights that sum to 1, means, variances; computed in float64, in the dtype of ``means``. A component
        without mass gets weight 0, mean 0 and the floor as its variance.

    Raises:
        InvalidTensorError: For inconsistent shapes, negative or non-finite values, or a class without any
            record at any client, for which no mixture exists.
        PrivacyParameterError: If the floor is negative or not finite.
    """
    if not 0 <= floor < math.inf:
        raise PrivacyParameterError(f"floor must be a finite number >= 0, got {floor!r}. Typical: 1.0e-6.")
    dtype = check_tensor(means, "means", ndim=3).dtype
    means = means.double()
    variances = check_tensor(variances, "variances", shape=tuple(means.shape)).double()
    if isinstance(counts, Tensor) and counts.dtype == torch.bool:
        raise InvalidTensorError(
            "counts must be numbers of records, got booleans. Pass the counts themselves."
        )
    counts = counts.double() if isinstance(counts, Tensor) else counts
    counts = check_tensor(counts, "counts", shape=tuple(means.shape[:2]))
    if bool((counts < 0).any()) or bool((variances < 0).any()):
        raise InvalidTensorError("counts and variances must not be negative anywhere.")
    mass = counts.sum(dim=0)  # N, [component]
    if not float(mass.sum()) > 0:
        raise InvalidTensorError(
            "No client holds a record of this class, so that it has no mixture. Check the partition: a "
            "client may lack a class, but not all of them together."
        )
    # A share of exactly 1 for a single client keeps its moments bit for bit.
    share = torch.where(mass > 0, counts / mass.clamp_min(torch.finfo(mass.dtype).tiny), 0).unsqueeze(-1)
    mean = (share * means).sum(dim=0)  # [component, dim]
    within = (share * variances).sum(dim=0)
    # fidelity: noise-in-between-term
    between = (share * (means - mean).square()).sum(dim=0)  # the clients' variation
    if noise_std is not None:
        noise_std = check_tensor(noise_std, "noise_std", shape=tuple(means.shape[:2])).double()
        inflation = between_inflation(share.squeeze(-1), noise_std)  # [component]
        between = (between - inflation.unsqueeze(-1)).clamp_min(0)
    # fidelity: variance-floor
    variance = (within + between).clamp_min(floor)
    return Components((mass / mass.sum()).to(dtype), mean.to(dtype), variance.to(dtype))


def between_inflation(
    share: Float[Tensor, "client component"], noise_std: Float[Tensor, "client component"]
) -> Float[Tensor, " component"]:
    """What noise adds to the between-client term of Eq. (24), in expectation: Σ_k w_k (1 - w_k) σ_k².

    With μ̃_k = μ_k + e_k and shares w_k that add up to 1, the deviation from the pooled mean gains e_k - Σ_j w_j e_j,
    of variance σ_k² - 2 w_k σ_k² + Σ_j w_j² σ_j²; weighted by w_k and added up, - 2 Σ w² σ² + Σ w² σ² leaves the
    formula. Zero for one client, whose noise moves the pooled mean alone. Alignment chooses by the noisy means,
    so that after it the true inflation is a little smaller; that is not corrected.
    """
    return (share * (1 - share) * noise_std.square()).sum(dim=0)


def mixture_from_release(
    release: ShardRelease, *, floor: float = 1e-6, subtract_noise: bool = False
) -> Mixture:
    """Align the clients and aggregate every class: FedDP-PALD Eqs. (22)-(24).

    Args:
        release: Of all clients.
        floor: Smallest variance.
        subtract_noise: Whether the known noise is taken out of the variation between clients. Post-processing:
            the noise levels are public.

    Raises:
        InvalidTensorError: If a class has no record at any client; the message names it.
        PrivacyParameterError: If the floor is negative or not finite.
    """
    aligned = align_release(release)
    empty = torch.nonzero(release.counts.sum(dim=(0, 2)) == 0).flatten().tolist()
    if empty:
        raise InvalidTensorError(
            f"No client released a record of the classes {empty}, so that they have no mixture. "
            "Check the partition and the number of classes."
        )
    classes = [
        aggregate(
            aligned.counts[:, label],
            aligned.means[:, label],
            aligned.variances[:, label],
            floor=floor,
            noise_std=aligned.noise_std[:, label] if subtract_noise else None,
        )
        for label in range(release.counts.shape[1])
    ]
    weights, means, variances = (torch.stack(parts) for parts in zip(*classes, strict=True))
    return Mixture(weights, means, variances)


def sample_mixture(
    mixture: Mixture, num_per_class: int, generator: torch.Generator
) -> tuple[Float[Tensor, "n dim"], Int64[Tensor, " n"]]:
    """Draws from every class: r ~ Cat(π̃_c), h ~ N(μ̃_{c,r}, Σ̃_{c,r}), FedDP-PALD Eq. (25).

    With factors Σ̃ = diag(variances) + F Fᵀ, drawn as √variances z + F z'.

    Args:
        mixture: Weights 0 are never drawn.
        num_per_class: Draws per class, ≥ 1.
        generator: On the device of the mixture.

    Returns:
        Latents, in the dtype of the mixture, and their labels; class after class.

    Raises:
        PrivacyParameterError: If ``num_per_class`` is no integer ≥ 1.
    """
    num_per_class = check_count(num_per_class, "num_per_class")
    num_classes, _, dim = mixture.means.shape
    component = torch.multinomial(
        mixture.weights.double(), num_per_class, replacement=True, generator=generator
    )  # [class, draw]
    index = component.unsqueeze(-1).expand(-1, -1, dim)
    mean = mixture.means.double().gather(1, index)  # [class, draw, dim]
    std = mixture.variances.double().sqrt().gather(1, index)
    noise = torch.randn(mean.shape, dtype=torch.float64, device=mean.device, generator=generator)
    labels = torch.arange(num_classes, device=mean.device).repeat_interleave(num_per_class)
    drawn = mean + std * noise
    if mixture.factors is not None:
        coordinates = torch.randn(
            (num_classes, num_per_class, mixture.factors.shape[-1]),
            dtype=torch.float64, device=mean.device, generator=generator,
        )  # fmt: skip
        for label in range(num_classes):  # a factor per draw, one class at a time: 64 x 8 doubles each
            factor = mixture.factors[label].double()[component[label]]  # [draw, dim, rank]
            drawn[label] += (factor @ coordinates[label].unsqueeze(-1)).squeeze(-1)
    return drawn.reshape(-1, dim).to(mixture.means.dtype), labels


def mixture_log_density(mixture: Mixture, latents: Float[Tensor, "n dim"]) -> Float[Tensor, "n class"]:
    """log p̃(h | y = c) of every latent under every class, FedDP-PALD Eq. (3), natural logarithm, float64.

    Raises:
        InvalidTensorError: If the latents are not finite, or have another dimension than the mixture.
    """
    latents = check_tensor(latents, "latents", ndim=2).double()
    if latents.shape[1] != mixture.means.shape[2]:
        raise InvalidTensorError(
            f"latents have {latents.shape[1]} dimensions, the mixture has {mixture.means.shape[2]}."
        )
    by_class = []
    for label, weights in enumerate(mixture.weights):
        factors = None if mixture.factors is None else mixture.factors[label].double()
        log_densities = _normal_log_density(
            latents, mixture.means[label].double(), mixture.variances[label].double(), factors
        )  # [n, component]
        by_class.append((weights.double().log() + log_densities).logsumexp(dim=-1))
    return torch.stack(by_class, dim=1)


def _normal_log_density(
    latents: Float[Tensor, "n dim"],
    means: Float[Tensor, "component dim"],
    variances: Float[Tensor, "component dim"],
    factors: Float[Tensor, "component dim rank"] | None,
) -> Float[Tensor, "n component"]:
    if factors is not None:
        normal = LowRankMultivariateNormal(means, factors, variances, validate_args=False)
        return normal.log_prob(latents.unsqueeze(1))
    distance = ((latents[:, None] - means).square() / variances).sum(dim=-1)  # [n, component]
    log_normalizer = (2 * math.pi * variances).log().sum(dim=-1)  # [component]
    return -0.5 * (distance + log_normalizer)
