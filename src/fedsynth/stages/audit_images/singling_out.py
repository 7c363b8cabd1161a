"""T1 to T4: does a released image point at one training image, more often than chance and controls would?

What the tests show and what not: `fedsynth.attacks.singling_out`. T6, how the answers change with the generator's and
the filter's settings, is the comparison of several audits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.attacks.isolation_baseline import isolation_ceiling
from fedsynth.attacks.residual_risk import wilson_proportion
from fedsynth.attacks.self_retrieval import self_retrieval
from fedsynth.attacks.singling_out import IsolationCurve, IsolationPoint, isolation_curve, radius_grid
from fedsynth.evaluation.neighbors import nearest_neighbors
from fedsynth.seeding import generator
from fedsynth.stages.audit_images.dp_control import bound_row
from fedsynth.stages.audit_images.records import AuditRecords
from fedsynth.stages.audit_images.spaces import Space
from fedsynth.stages.audit_images.spec import AuditImagesSettings
from fedsynth.stages.audit_images.table import Row, proportion_row

RELEASED = "released"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A set of images tried as a release.

    Attributes:
        name: ``released``, or the control it is: ``positive``, ``negative``, ``independent``, ``dp``.
        what: The same in words.
        points: Its features.
        source: The training image each is said to be made of; for images made of none a random one.
        is_made_of_source: Whether that is more than a random choice.
    """

    name: str
    what: str
    points: Float[Tensor, "m d"]
    source: Int64[Tensor, " m"] | None
    is_made_of_source: bool

    def metric(self, quantity: str, space: Space) -> str:
        """Name of a metric of this set in a space."""
        prefix = "" if self.name == RELEASED else f"control/{self.name}/"
        return f"{prefix}{quantity}{space.suffix}"

    def test(self, number: str) -> str:
        """The test a row belongs to: controls are T4."""
        return number if self.name == RELEASED else "T4"


def candidates(records: AuditRecords, space: Space, seed: int) -> Iterator[Candidate]:
    """The release and its controls, in one space."""
    stream = generator(seed, "audit", "controls")
    num_train = len(space.train)

    def random_rows(points: Tensor) -> Tensor:
        return torch.randint(num_train, (len(points),), generator=stream)

    released = space.released
    yield Candidate(RELEASED, "released images", released, records.source, records.source is not None)
    own = records.source if records.source is not None else random_rows(released)
    yield Candidate("positive", "training images themselves", space.train[own], own, True)
    negative = space.negative
    yield Candidate("negative", "real images of other people", negative, random_rows(negative), False)
    if space.independent is not None:
        points = space.independent
        yield Candidate(
            "independent", "images of an independent generator", points, random_rows(points), False
        )
    if space.dp is not None:
        yield Candidate(
            "dp", "points of a differentially private release", space.dp, random_rows(space.dp), False
        )


def radii(space: Space, settings: AuditImagesSettings) -> Float[Tensor, " radius"]:
    """The grid, and behind it the radius fixed beforehand, in median nearest-neighbor distances of the control."""
    grid = radius_grid(space.control, settings.num_radii)
    # fidelity: isolation-fixed-radius
    median = nearest_neighbors(space.control).distance[:, 0].quantile(0.5)
    return torch.cat([grid, (settings.isolation_radius * median).view(1)])


def singling_out(
    records: AuditRecords, space: Space, settings: AuditImagesSettings
) -> tuple[list[Row], dict[str, Tensor]]:
    """T1 to T4 in one space.

    Returns:
        Rows of the table, and the isolation curves by ``<space>/<set>.<quantity>``.
    """
    radius = radii(space, settings)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for candidate in candidates(records, space, settings.seed):
        if candidate.source is not None:
            rows.append(_self_retrieval(candidate, candidate.source, space, settings))
        curve = isolation_curve(
            candidate.points,
            space.train,
            space.control,
            radius,
            source=candidate.source if candidate.is_made_of_source else None,
            confidence=settings.confidence,
        )
        rows += _isolation(candidate, curve, space, settings)
        if candidate.name == "dp" and settings.dp_epsilon is not None:
            metric = candidate.metric("isolation/bound", space)
            rows.append(bound_row(curve.points[-1], curve.num_train, settings.dp_epsilon, space, metric))
        stored = {
            f"{space.name}/{candidate.name}.{name}": values for name, values in curve_tensors(curve).items()
        }
        tensors |= stored
    return rows, tensors


def _self_retrieval(candidate: Candidate, source: Tensor, space: Space, settings: AuditImagesSettings) -> Row:
    found = self_retrieval(candidate.points, space.train, source, confidence=settings.confidence)
    median = int(found.rank.double().quantile(0.5, interpolation="lower"))
    said = "the source" if candidate.is_made_of_source else "a random training image"
    return proportion_row(
        found.retrieved,
        test=candidate.test("T1"),
        space=space.name,
        quantity=f"self-retrieval rate of {candidate.what}",
        chance=found.chance,
        note=f"median rank of {said}: {median} of {len(space.train)}; {found.num_tied} tied with repeated images",
        metric=candidate.metric("self_retrieval/rate", space),
    )


def _isolation(
    candidate: Candidate, curve: IsolationCurve, space: Space, settings: AuditImagesSettings
) -> Iterator[Row]:
    *grid, fixed = curve.points
    at = f"at {settings.isolation_radius:g} median distances"
    yield proportion_row(
        fixed.isolating,
        test=candidate.test("T2"),
        space=space.name,
        quantity=f"balls around {candidate.what} that isolate one training image, {at}",
        chance=fixed.baseline_ceiling,
        note=(
            f"chance is that of the largest weights the {curve.num_control} control images allow, "
            f"{fixed.weight_bound:.2g} on average; at their estimates it is {fixed.baseline:.2g}"
        ),
        metric=candidate.metric("isolation/isolating", space),
    )
    yield proportion_row(
        fixed.unseen,
        test=candidate.test("T2"),
        space=space.name,
        quantity=f"… one training image and no control image, {at}",
        chance=fixed.unseen_ceiling,
        note="chance needs no weights: a predicate chosen without the release does not know who was trained on",
        metric=candidate.metric("isolation/unseen", space),
    )
    if candidate.name == RELEASED:
        yield largest_over_radii(candidate, grid, space, settings)
    risk = fixed.residual
    yield Row(
        test=candidate.test("T3"),
        space=space.name,
        quantity=f"residual risk of {candidate.what}, {at}",
        value=risk.estimate,
        low=risk.low,
        high=risk.high,
        chance_or_control=fixed.control_equal.share,
        note=(
            f"success among {curve.num_equal} training images "
            f"{'with the source ' if candidate.is_made_of_source else ''}{fixed.train_equal.share:.3g}, among as many "
            f"control images {fixed.control_equal.share:.3g}"
        ),
        metric=candidate.metric("residual_risk/estimate", space),
    )


def largest_over_radii(
    candidate: Candidate, grid: list[IsolationPoint], space: Space, settings: AuditImagesSettings
) -> Row:
    """The radius where most balls hold one training and no control image; the interval counts the looks (Bonferroni)."""
    confidence = 1 - (1 - settings.confidence) / len(grid)
    best = max(grid, key=lambda point: point.unseen.share)
    found = wilson_proportion(best.unseen.successes, best.unseen.trials, confidence=confidence)
    return proportion_row(
        found,
        test="T2",
        space=space.name,
        quantity=f"… at the radius of {len(grid)} where most do",
        chance=best.unseen_ceiling,
        note=f"radius {best.radius:.4g}; interval at {confidence:.4g}, for {len(grid)} radii",
        metric=candidate.metric("isolation/largest_unseen", space),
    )


def curve_tensors(curve: IsolationCurve) -> dict[str, Tensor]:
    """An isolation curve as columns over radii, in ascending order; residual risk may be NaN."""
    points = sorted(curve.points, key=lambda point: point.radius)
    shares = ("isolating", "unseen", "train_equal", "control_equal")
    columns: dict[str, list[float]] = {
        name: [getattr(point, name) for point in points]
        for name in ("radius", "weight", "weight_bound", "baseline", "baseline_ceiling", "unseen_ceiling")
    }
    for name in shares:
        columns[name] = [getattr(point, name).share for point in points]
        for end in ("low", "high"):
            columns[f"{name}_{end}"] = [getattr(getattr(point, name), end) for point in points]
    columns["residual"] = [point.residual.estimate for point in points]
    for end in ("low", "high"):
        columns[f"residual_{end}"] = [getattr(point.residual, end) for point in points]
    # No predicate of any weight isolates more often by chance.
    columns["ceiling"] = [float(isolation_ceiling(curve.num_train, 1.0))] * len(points)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
