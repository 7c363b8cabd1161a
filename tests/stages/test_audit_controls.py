"""Controls of the audit: what pairs they are made of, and what privacy they have."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_audited import (
    audit_inputs,
    audited,
    gathered,
    made_set,
    number,
    only,
    people,
    real_sets,
    stored_images,
)
from tiny_stages import values
from torch import Tensor

from fedsynth.attacks import dp_isolation_bound
from fedsynth.models.pixel_pca import fit_pixel_pca
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.privacy.gaussian import gaussian_delta
from fedsynth.stages.audit_images.dp_control import dp_sample, private_delta
from fedsynth.stages.audit_images.independence import CONDITION, FILTER, NEITHER, RANKING, UNKNOWN, uses
from fedsynth.stages.audit_images.matched_pairs import same_label_pairs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return audit_inputs(tmp_path_factory.mktemp("audited"))


def _stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20), st.booleans())
def test_pairs_have_the_same_labels_and_leave_out_only_who_has_no_partner(
    query: list[int], reference: list[int], is_multilabel: bool
) -> None:
    first, second = torch.tensor(query).long(), torch.tensor(reference).long()
    if is_multilabel:
        first, second = (torch.stack([one % 2, one // 2], dim=1).to(torch.uint8) for one in (first, second))
    rows, partner = same_label_pairs(first, second, _stream())
    assert torch.equal(first[rows], second[partner])
    assert rows.tolist() == [row for row, label in enumerate(query) if label in reference]


def test_every_partner_of_the_class_is_drawn_equally_often() -> None:
    reference = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    rows, partner = same_label_pairs(torch.ones(40_000, dtype=torch.long), reference, _stream())
    assert len(rows) == 40_000
    share = partner.bincount(minlength=7).double() / 40_000
    torch.testing.assert_close(share, (reference == 1).double() / 4, atol=0.01, rtol=0)


def test_other_people_are_paired_within_their_class(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    """Of classes that no training image has, there is no pair; the rate is that of the others."""
    real = real_sets()
    train = replace(real["train"], label=torch.zeros_like(real["train"].label))
    images = stored_images(tmp_path / "images", "xray_images", **{**real, "train": train})
    given_ = {**only(inputs, "reidentifier"), "images": images}
    released = made_set(train.image[:40], torch.arange(40), train)
    records = gathered(tmp_path / "gathered", given_, released)
    count = int((real["test"].label[records.negative] == 0).sum())
    assert 0 < count < len(records.negative)
    made = audited(tmp_path / "audited", given_, released)
    (row,) = [row for row in made.manifest["notes"]["table"] if "of the same labels" in row["quantity"]]
    assert row["note"].startswith(f"{count} pairs;")


def test_without_a_partner_of_its_class_the_control_is_left_out(
    tmp_path: Path,
    inputs: dict[str, Artifact],
) -> None:
    real = real_sets()
    train = replace(real["train"], label=torch.zeros_like(real["train"].label))
    test = replace(real["test"], label=torch.ones_like(real["test"].label))
    images = stored_images(tmp_path / "images", "xray_images", train=train, val=real["val"], test=test)
    given_ = {**only(inputs, "reidentifier"), "images": images}
    made = audited(tmp_path, given_, made_set(train.image[:40], torch.arange(40), train))
    assert ("made", "reid/source_rate", 42) in values(made)
    assert ("made", "control/negative/reid/source_rate", 42) not in values(made)


def _moments(points: Tensor) -> tuple[Tensor, Tensor]:
    return points.mean(0), torch.cov(points.T)


def test_without_noise_to_speak_of_points_have_the_moments_of_the_records() -> None:
    mixing = torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.5, 0.2], [0.0, 0.0, 0.1]]).double()
    train = torch.randn(400, 3, generator=_stream(), dtype=torch.float64) @ mixing + 0.2
    points = dp_sample(train, 200_000, epsilon=1e6, radius=8.0, seed=1)
    for got, wanted in zip(_moments(points), _moments(train), strict=True):
        torch.testing.assert_close(got, wanted, atol=0.02, rtol=0.02)


def test_the_radius_bounds_what_a_record_can_change() -> None:
    """A record far away counts as one on the sphere: the sample cannot tell them apart."""
    train = torch.randn(50, 3, generator=_stream(), dtype=torch.float64)
    far, near = train.clone(), train.clone()
    far[0], near[0] = torch.tensor([1e6, 0, 0]), torch.tensor([2.0, 0, 0])
    made = [dp_sample(one, 20, epsilon=2.0, radius=2.0, seed=3) for one in (far, near)]
    torch.testing.assert_close(made[0], made[1])


def test_the_noise_is_what_the_guarantee_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and second moment together: one Gaussian mechanism of the joint sensitivity, whose δ at ε is exact."""
    from fedsynth.privacy.budget import GaussianBudget

    seen: list[GaussianBudget] = []
    own = GaussianBudget.__init__

    def kept(self: GaussianBudget, **options: Any) -> None:
        own(self, **options)
        seen.append(self)

    monkeypatch.setattr(GaussianBudget, "__init__", kept)
    dp_sample(torch.randn(50, 3, generator=_stream()), 5, epsilon=4.0, radius=1.5, seed=0)
    (budget,) = seen
    mean, moment = budget.parts
    assert (mean.sensitivity, moment.sensitivity) == (3.0, pytest.approx(math.sqrt(2) * 1.5**2))
    mu = math.hypot(mean.sensitivity / mean.noise_std, moment.sensitivity / moment.noise_std)
    assert budget.spent_share == pytest.approx(1.0)
    assert gaussian_delta(4.0, 1 / mu, 1.0) == pytest.approx(private_delta(50), rel=1e-6)
    assert private_delta(50) == 1 / 2500


def test_the_private_release_is_at_chance_where_copies_are_found(
    tmp_path: Path,
    inputs: dict[str, Artifact],
) -> None:
    train = real_sets()["train"]
    made = audited(tmp_path, only(inputs), made_set(train.image, torch.arange(len(train)), train))
    found, rows = values(made), {row["metric"]: row for row in made.manifest["metrics"]}
    space = "/pixel_pca12_val"
    assert fit_pixel_pca(real_sets()["val"].image, 12).name + "_val" == space[1:]
    assert number(found, f"self_retrieval/rate{space}") == 1.0
    control = rows[f"control/dp/self_retrieval/rate{space}"]
    assert control["ci_low"] <= 1 / len(train) <= control["ci_high"]
    n, curve = (
        len(train),
        {
            name.partition(".")[2]: column
            for name, column in made.load("isolation.safetensors").items()
            if name.startswith(f"{space[1:]}/dp.")
        },
    )
    at = int((curve["isolating"] == number(found, f"control/dp/isolation/isolating{space}")).nonzero()[0])
    bounds = [
        dp_isolation_bound(n, float(weight), epsilon=4.0, delta=1 / n**2) for weight in curve["weight_bound"]
    ]
    assert number(found, f"control/dp/isolation/bound{space}") in bounds
    assert curve["isolating"][at] <= bounds[at]
    assert made.manifest["notes"]["dp_control"]["delta"] == 1 / n**2


def test_without_epsilon_there_is_no_private_control(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    train = real_sets()["train"]
    made = audited(
        tmp_path, only(inputs), made_set(train.image, torch.arange(len(train)), train), dp_epsilon=None
    )
    assert not any(
        (metric.endswith("_val") and "pca" in metric) or "/dp/" in metric for _, metric, _ in values(made)
    )
    assert "dp_control" not in made.manifest["notes"]


def _stored(folder: Path, key: str, **manifest: Any) -> Artifact:
    images = stored_images(folder / key, manifest.pop("kind", "select_images"), train=people(4, _stream()))
    images.manifest.update(manifest)
    return replace(images, key=key)


@pytest.mark.parametrize(
    ("released", "wanted"),
    [
        ({"inputs": {"features": "f", "classifier": "c", "reidentifier": "r"}}, (CONDITION, RANKING, FILTER)),
        ({"inputs": {"features": "f2", "classifier": "c2", "reidentifier": "r2"}}, (NEITHER,) * 3),
        ({"inputs": {}}, (NEITHER,) * 3),
        (
            {
                "inputs": {"features": "f", "classifier": "c", "reidentifier": "r"},
                "settings": {"ranking": "first", "filter": "none"},
            },
            (CONDITION, NEITHER, NEITHER),
        ),
        ({"kind": "data_sharing", "inputs": {}}, (UNKNOWN,) * 3),
    ],
)
def test_spaces_say_what_the_release_had_to_do_with_them(
    tmp_path: Path, released: dict[str, Any], wanted: tuple[str, ...]
) -> None:
    made = _stored(tmp_path, "m", **{"settings": {"ranking": "predicates", "filter": "mask"}, **released})
    given_ = {name: _stored(tmp_path, name[0]) for name in ("features", "classifier", "reidentifier")}
    roles = {
        "lite": "features",
        "classifier": "classifier",
        "reidentifier": "reidentifier",
        "pixel_pca64": None,
    }
    found = uses({"released": made, **given_}, roles)
    assert tuple(found.values()) == (*wanted, NEITHER)
