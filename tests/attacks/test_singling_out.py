"""Isolation curves: brute force, equal sizes by enumeration, positive, negative and private controls."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from fedsynth.attacks import dp_isolation_bound, isolation_ceiling, isolation_curve, radius_grid
from fedsynth.attacks.isolation_baseline import unseen_ceiling
from fedsynth.evaluation import EvaluationError, nearest_neighbors


def _points(n: int, seed: int, d: int = 4) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_counts_weights_and_baselines_by_hand():
    train = torch.tensor([[0.0], [1.0], [5.0]])
    control = torch.tensor([[0.5], [7.0], [8.0], [9.0]])
    release = torch.tensor([[0.2], [4.0], [8.0]])
    (point,) = isolation_curve(release, train, control, torch.tensor([1.0])).points
    # Training records inside: 2, 1, 0; control records inside: 1, 0, 3 (both ends of a closed ball).
    assert (point.isolating.successes, point.isolating.trials) == (1, 3)
    assert point.weight == pytest.approx((1 + 0 + 3) / 4 / 3)
    assert point.baseline == pytest.approx((3 * 0.25 * 0.75**2 + 0 + 3 * 0.75 * 0.25**2) / 3)
    # Upper limits at 95 %: of no hit 1 - .05^(1/4), of 1 and 3 hits in 4 those of the Clopper-Pearson tables.
    assert point.weight_bound == pytest.approx((0.7514 + (1 - 0.05**0.25) + 0.9873) / 3, abs=1e-4)
    assert point.baseline_ceiling == pytest.approx((2 / 3) ** 2)  # all bounds are above 1/n
    assert point.unseen.successes == 1
    assert point.unseen_ceiling == unseen_ceiling(3, 4)


@pytest.mark.parametrize("radius", [0.3, 0.8, 1.5, 3.0])
def test_isolations_are_those_of_all_pairwise_distances(radius):
    release, train, control = _points(60, 0), _points(80, 1), _points(80, 2)
    (point,) = isolation_curve(release, train, control, torch.tensor([radius])).points
    inside, hits = ((torch.cdist(release, records) <= radius).sum(dim=1) for records in (train, control))
    assert point.isolating.successes == int((inside == 1).sum())
    assert point.unseen.successes == int(((inside == 1) & (hits == 0)).sum())
    assert point.weight == pytest.approx(float(hits.double().mean()) / 80)
    # Of equal sizes nothing is left out.
    assert point.train_equal == point.isolating
    assert point.control_equal.successes == int((hits == 1).sum())


def test_no_hit_is_bounded_by_the_rule_of_three():
    for num_control in (50, 500):
        control = _points(num_control, 3) + 1e3
        (point,) = isolation_curve(_points(5, 4), _points(9, 5), control, torch.tensor([1.0])).points
        assert (point.weight, point.baseline) == (0.0, 0.0)
        assert 2.9 / num_control < point.weight_bound < 3 / num_control
        assert point.baseline_ceiling == pytest.approx(isolation_ceiling(9, point.weight_bound))


def _subset_share(release, records, radius, size, source=None) -> float:
    """Mean share of isolating balls over every subset of records (of those with the source)."""
    inside = torch.cdist(release, records) <= radius
    total, count = 0.0, 0
    for row, line in enumerate(inside):
        for subset in combinations(range(len(records)), size):
            if source is None or int(source[row]) in subset:
                total += int(line[list(subset)].sum()) == 1
                count += 1
    return total / count


@pytest.mark.parametrize("radius", [0.0, 0.9, 1.6, 2.5])
def test_equal_sizes_are_averages_over_all_subsets(radius):
    large, small = _points(9, 6), _points(4, 7)
    source = torch.tensor([0, 3, 8, 8, 2])
    release = large[source] + 0.6 * _points(5, 8)
    radii = torch.tensor([radius])
    (point,) = isolation_curve(release, large, small, radii).points
    assert point.train_equal.share == pytest.approx(_subset_share(release, large, radius, 4))
    assert point.control_equal.share == pytest.approx(_subset_share(release, small, radius, 4))
    (known,) = isolation_curve(release, large, small, radii, source=source).points
    assert known.train_equal.share == pytest.approx(_subset_share(release, large, radius, 4, source))
    assert known.isolating == point.isolating
    (swapped,) = isolation_curve(release, small, large, radii).points
    assert swapped.control_equal.share == pytest.approx(_subset_share(release, large, radius, 4))


@pytest.mark.parametrize("num_control", [150, 600])
def test_positive_control_releasing_the_records_isolates_every_one(num_control):
    train, control = _points(200, 9, 16), _points(num_control, 10, 16)
    curve = isolation_curve(train, train, control, radius_grid(control), source=torch.arange(200))
    assert (curve.num_train, curve.num_control, curve.num_equal) == (200, num_control, min(200, num_control))
    point = curve.points[0]
    assert (point.isolating.share, point.unseen.share, point.weight) == (1.0, 1.0, 0.0)
    assert (point.residual.estimate, point.train_equal.share, point.control_equal.share) == (1.0, 1.0, 0.0)
    assert point.residual.low > 0.95
    assert point.unseen.low > point.unseen_ceiling
    assert point.isolating.low > point.baseline_ceiling
    # The largest balls hold many records and isolate nobody.
    assert curve.points[-1].isolating.share < 0.3


def test_without_sources_the_risk_of_a_small_control_is_diluted_as_documented():
    train, control = _points(200, 11, 16), _points(50, 12, 16)
    radii = radius_grid(control)[:1]
    (point,) = isolation_curve(train, train, control, radii).points
    assert point.residual.estimate == pytest.approx(50 / 200)


def test_negative_control_an_independent_sample_stays_below_chance():
    train, control, release = _points(300, 13), _points(1_200, 14), _points(400, 15)
    for point in isolation_curve(release, train, control, radius_grid(control)).points:
        # 12 radii, 95 % two-sided: a limit is exceeded by chance in 1 of 40; these seeds have none.
        assert point.isolating.low < point.baseline_ceiling
        assert point.unseen.low < point.unseen_ceiling
        assert point.residual.low < 0 < point.residual.high
        # The estimated baseline is what independent predicates reach: 400 of them, standard error up to .025.
        assert point.isolating.share == pytest.approx(point.baseline, abs=0.09)


def test_noisy_copies_are_singled_out_and_more_noise_less_so():
    train, control = _points(250, 16, 12), _points(250, 17, 12)
    radii, source = radius_grid(control), torch.arange(250)
    worst = []
    for noise in (0.05, 0.5, 1.0, 4.0):
        release = train + noise * _points(250, 18, 12)
        curve = isolation_curve(release, train, control, radii, source=source)
        worst.append(max(point.residual.estimate for point in curve.points))
    assert worst == sorted(worst, reverse=True)
    assert worst[0] > 0.95
    assert worst[-1] < 0.1


def test_a_private_release_stays_within_its_bound_and_an_open_one_does_not():
    # The mean of n records of [0, 1]^2 by the Laplace mechanism (replace-one L1 sensitivity 2/n), ε = .5, and the first
    # record as it is. A ball of radius r has a weight of at most π r².
    n, epsilon, radius = 40, 0.5, 0.02
    bound = dp_isolation_bound(n, math.pi * radius**2, epsilon=epsilon)
    assert bound < 0.1
    generator = torch.Generator().manual_seed(19)
    control = torch.rand(2, 2, generator=generator, dtype=torch.float64)
    private, open_release = [], []
    for _ in range(400):
        train = torch.rand(n, 2, generator=generator, dtype=torch.float64)
        uniform = torch.rand(2, generator=generator, dtype=torch.float64) - 0.5
        mean = train.mean(dim=0) - 2 / n / epsilon * uniform.sign() * torch.log1p(-2 * uniform.abs())
        (point,) = isolation_curve(
            torch.stack([mean, train[0]]), train, control, torch.tensor([radius])
        ).points
        (alone,) = isolation_curve(train[:1], train, control, torch.tensor([radius])).points
        open_release.append(alone.isolating.successes)
        private.append(point.isolating.successes - alone.isolating.successes)
    # Chance is .05: 20 ± 4.4 of 400 isolate, the bound is 33.
    assert 0 < sum(private) / 400 <= bound
    assert sum(open_release) / 400 > 0.9


def test_radii_span_the_distances_of_the_control():
    control = _points(300, 20)
    radii = radius_grid(control, 6)
    median = float(nearest_neighbors(control).distance.quantile(0.5))
    assert (float(radii[0]), float(radii[-1])) == pytest.approx((median / 16, median * 2))
    assert (radii[1:] / radii[:-1]).tolist() == pytest.approx([2.0] * 5)


def test_radii_of_repeated_points_are_refused():
    with pytest.raises(EvaluationError, match="repeated points"):
        radius_grid(torch.ones(5, 2))
    with pytest.raises(EvaluationError, match="num_radii must be an integer >= 2"):
        radius_grid(_points(5, 0), 1)
    with pytest.raises(EvaluationError, match="control must hold at least 2"):
        radius_grid(_points(1, 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": torch.zeros(1, 4)}, "train must hold at least 2"),
        ({"control": torch.zeros(1, 4)}, "control must hold at least 2"),
        ({"control": torch.zeros(3, 5)}, "release and control must have the same"),
        ({"release": torch.zeros(0, 4)}, "release must hold at least 1"),
        ({"radius": torch.tensor([-1.0])}, "radius must hold at least one finite radius"),
        ({"radius": torch.tensor([torch.inf])}, "radius must hold"),
        ({"radius": torch.tensor([])}, "Take them from radius_grid"),
        ({"radius": torch.tensor(1.0)}, "radius must hold"),
        ({"source": torch.tensor([9, 0, 0])}, r"source must lie in \[0, 7\]"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {
        "release": _points(3, 0),
        "train": _points(8, 1),
        "control": _points(6, 2),
        "radius": torch.tensor([1.0]),
    } | changes
    with pytest.raises(EvaluationError, match=message):
        isolation_curve(**arguments)
