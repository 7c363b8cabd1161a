"""The likelihood ratio "h is among the n records averaged" against "it is not", for a Gaussian mean.

Notation, in the eigenbasis of the population covariance and centered at the population mean: x candidate [d],
μ~ released mean, n records in the shard, σ noise_std, λ eigenvalues, N records in the population (∞ when the
adversary knows a distribution and no list of records).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

#: Eigenvalues below this share of the largest are measurement noise of float64.
RELATIVE_FLOOR = 1e-12


def mean_likelihood_ratio(
    candidate: Float[Tensor, "i d"],
    mean: Float[Tensor, "r d"],
    count: Float[Tensor, " r"],
    noise_std: Float[Tensor, " r"],
    eigenvalue: Float[Tensor, " d"],
    *,
    population_size: float = float("inf"),
    relative_floor: float = RELATIVE_FLOOR,
) -> Float[Tensor, "i r"]:
    """log p(μ~_r | h in shard r) - log p(μ~_r | h not in it), for every candidate and shard.

    The n records are drawn without replacement from N known ones, h among them:

    - in: n - 1 others, so μ~ ~ N(a x, λ (n-1)/n² · f + σ²) with f = 1 - (n-1)/(N-1) and a = f / n;
    - out: n of the N - 1 others, so μ~ ~ N(b x, λ/n · (1 - n/(N-1)) + σ²) with b = -1/(N-1).

    N = ∞ gives the usual a = 1/n, b = 0. Optimal (Neyman-Pearson) for Gaussian latents and one shard; that other
    shards of the cell exclude each other's records is not used (it gained 0.007 AUROC without noise and nothing
    with it).

    Degenerate: variances are floored at `relative_floor` of the largest eigenvalue over n, so a shard of one
    record without noise gives a large finite score. A population of one is taken for one of two.
    """
    n, noise = count.unsqueeze(1), noise_std.square().unsqueeze(1)  # [shard, 1]
    others = max(population_size - 1, 1.0)
    share = 1 - (n - 1) / others  # 1 when N = ∞
    floor = relative_floor * eigenvalue.max().clamp(min=RELATIVE_FLOOR) / n
    var_in = (eigenvalue * (n - 1) / n**2 * share).clamp(min=0) + noise
    var_out = (eigenvalue / n * (1 - n / others)).clamp(min=0) + noise
    var_in, var_out = torch.maximum(var_in, floor), torch.maximum(var_out, floor)  # [shard, d]
    a, b = share / n, -1 / others
    # ((μ - b x)²/v_out - (μ - a x)²/v_in + log(v_out/v_in)) / 2, multiplied out so that two products suffice.
    constant = (mean.square() / var_out - mean.square() / var_in + (var_out / var_in).log()).sum(dim=1)
    cross = candidate @ (mean * (a / var_in - b / var_out)).T
    quadratic = candidate.square() @ (b**2 / var_out - a**2 / var_in).T
    return constant / 2 + cross + quadratic / 2
