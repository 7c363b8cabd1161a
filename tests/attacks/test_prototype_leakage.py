"""Attacks on uploaded prototypes: closed forms, chance levels, invariances, what one record more or less shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedsynth.attacks import (
    PrototypeEvidence,
    RecordOwners,
    client_attribution,
    compare_with_prototypes,
    exact_match_rates,
    membership_cells,
    nearest_shares,
    prototype_leakage,
)
from fedsynth.attacks.group_bootstrap import group_weights
from fedsynth.attacks.prototype_audit import _mean_auroc
from fedsynth.errors import FedSynthError
from fedsynth.evaluation.bootstrap import BootstrapInterval
from fedsynth.evaluation.checks import EvaluationError

DIM = 6


class Federation:
    """Clients with their own encoders (random linear maps) and exact class means of what these give."""

    def __init__(
        self, sizes: list[list[int]], seed: int = 0, *, shift: float = 0.0, same_encoder: bool = True
    ):
        stream = torch.Generator().manual_seed(seed)
        cells = [(k, c) for k, row in enumerate(sizes) for c, n in enumerate(row) for _ in range(n)]
        self.client, self.label = (torch.tensor(part) for part in zip(*cells, strict=True))
        self.record = torch.randn(len(cells), DIM, generator=stream) + shift * self.client.unsqueeze(1)
        self.val = torch.randn(40, DIM, generator=stream)
        self.val_label = torch.arange(40) % len(sizes[0])
        one = torch.eye(DIM)
        self.encoder = [one if same_encoder else torch.randn(DIM, DIM, generator=stream) for _ in sizes]
        self.sizes = sizes

    def evidence(self, noise_std: float = 0.0, prototypes: Tensor | None = None) -> PrototypeEvidence:
        count = torch.tensor(self.sizes)
        stream = torch.Generator().manual_seed(99)
        norms, comparisons = [], []
        for k, encoder in enumerate(self.encoder):
            z = self.record @ encoder
            mean = torch.zeros(count.shape[1], DIM)
            for c in count[k].nonzero().flatten().tolist():
                mean[c] = z[(self.client == k) & (self.label == c)].mean(dim=0)
            mean = mean + noise_std * torch.randn(mean.shape, generator=stream)
            mean = mean if prototypes is None else prototypes
            norms.append(mean.double().norm(dim=1))
            comparisons.append(
                compare_with_prototypes(
                    mean,
                    count[k] > 0,
                    embedding=z,
                    label=self.label,
                    reference=self.val @ encoder,
                    reference_label=self.val_label,
                )
            )
        return PrototypeEvidence(torch.arange(len(count)), count, torch.stack(norms), comparisons)

    @property
    def owners(self) -> RecordOwners:
        return RecordOwners(self.label, self.client, torch.arange(len(self.label)))

    @property
    def reference(self) -> RecordOwners:
        return RecordOwners(self.val_label, torch.full((40,), -1), torch.arange(40))

    def report(self, evidence: PrototypeEvidence | None = None, **options: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {"generator": torch.Generator().manual_seed(1), "num_replicates": 50}
        return prototype_leakage(
            evidence or self.evidence(), self.owners, self.reference, **(arguments | options)
        )


def value(report: dict[str, Any], name: str) -> float:
    found = report[name]
    return found.estimate if isinstance(found, BootstrapInterval) else found


def test_a_prototype_of_one_record_is_that_record() -> None:
    made = Federation([[1, 1]] * 4, same_encoder=False)
    report = made.report()
    assert value(report, "nearest_attribution_top1") == 1.0
    assert value(report, "base_rate") == 0.25
    assert value(report, "nearest_attribution_top5") == 0.25  # one own record among the four there are
    assert value(report, "client_attribution") == 1.0
    assert value(report, "majority_rate") == 0.25
    assert value(report, "attack_auroc_other_clients") == value(report, "attack_auroc_val") == 1.0
    assert report["exact_match_1"] == 1.0


@pytest.mark.parametrize("noise_std", [1e-3, 1.0])
def test_noise_ends_exact_matches(noise_std: float) -> None:
    made = Federation([[1, 1]] * 4)
    assert exact_match_rates(made.evidence(noise_std), made.owners) == {"1": 0.0}


def test_exact_matches_are_counted_by_records_behind_the_prototype() -> None:
    made = Federation([[1, 2], [4, 5], [10, 60]])
    assert exact_match_rates(made.evidence(), made.owners) == {"1": 1.0, "2-4": 0.0, "5-9": 0.0, "10+": 0.0}
    # Two equal records average to themselves: a match, however many they are.
    made.record[(made.client == 0) & (made.label == 1)] = 1.0
    assert exact_match_rates(made.evidence(), made.owners)["2-4"] == 0.5


def test_equal_prototypes_of_all_clients_attribute_by_chance() -> None:
    made = Federation([[10, 6], [10, 6]])
    report = made.report(made.evidence(prototypes=torch.ones(2, DIM)))
    assert value(report, "client_attribution") == pytest.approx(0.5)  # all tie
    assert value(report, "majority_rate") == 0.5


def test_equal_records_of_all_clients_are_at_chance_everywhere() -> None:
    made = Federation([[8, 8], [8, 8]])
    made.record[made.client == 1] = made.record[made.client == 0]
    report = made.report()
    for name in ("nearest_attribution_top1", "client_attribution"):
        assert value(report, name) == pytest.approx(0.5)
    for name in ("attack_auroc_other_clients", "inner_product_attack_auroc_other_clients"):
        assert value(report, name) == pytest.approx(0.5)


def test_overwhelming_noise_leads_to_chance() -> None:
    means: dict[str, list[float]] = {}
    for seed in range(40):
        made = Federation([[12, 6], [9, 9], [6, 12]], seed)
        # Noise of one stream: rotate the records instead, so that every run sees another direction.
        made.record = (
            made.record
            @ torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(seed)))[0]
        )
        report = made.report(made.evidence(noise_std=1e4), num_replicates=1)
        for name in (
            "attack_auroc_other_clients",
            "inner_product_attack_auroc_val",
            "nearest_attribution_top1",
        ):
            means.setdefault(name, []).append(value(report, name))
        means.setdefault("base_rate", []).append(report["base_rate"])
    assert np.mean(means["attack_auroc_other_clients"]) == pytest.approx(0.5, abs=0.04)
    assert np.mean(means["inner_product_attack_auroc_val"]) == pytest.approx(0.5, abs=0.06)
    assert np.mean(means["nearest_attribution_top1"]) == pytest.approx(np.mean(means["base_rate"]), abs=0.12)


def test_the_inner_product_sees_members_of_a_mean_and_nobody_else() -> None:
    """Members gain ‖z - μ‖²/n; validation records, which define μ, must not lose by that."""
    found: dict[str, list[float]] = {"members": [], "outsiders": []}
    for seed in range(60):
        made = Federation([[5], [5]], seed)
        z = made.record
        own = compare_with_prototypes(
            z[made.client == 0].mean(dim=0, keepdim=True), torch.tensor([True]),
            embedding=z, label=made.label, reference=made.val, reference_label=made.val_label,
        )  # fmt: skip
        others = own.reference_inner_product.numpy()
        for name, score in (
            ("members", own.inner_product[made.client == 0]),
            ("outsiders", own.inner_product[made.client == 1]),
        ):
            truth = [1] * len(score) + [0] * len(others)
            found[name].append(roc_auc_score(truth, np.concatenate([score.numpy(), others])))
    assert np.mean(found["members"]) > 0.75
    assert np.mean(found["outsiders"]) == pytest.approx(0.5, abs=0.07)


@settings(max_examples=15)
@given(st.integers(0, 2**31))
def test_neither_the_order_of_records_nor_of_clients_matters(seed: int) -> None:
    made = Federation([[3, 2], [1, 4], [2, 2]], seed, same_encoder=False)
    made.record[0] = made.record[4]  # ties
    first = made.report()
    stream = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(made.label), generator=stream)
    clients = torch.randperm(3, generator=stream)
    for name in ("record", "label", "client"):
        setattr(made, name, getattr(made, name)[order])
    evidence = made.evidence()
    turned = PrototypeEvidence(
        evidence.sender[clients], evidence.count[clients], evidence.norm[clients],
        [evidence.comparisons[k] for k in clients.tolist()],
    )  # fmt: skip
    second = made.report(turned)
    assert first.keys() == second.keys()
    for name in first:
        assert value(second, name) == pytest.approx(value(first, name), abs=1e-9)


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(1, 30))
def test_nearest_shares_are_those_of_a_sorted_list(seed: int, num_nearest: int) -> None:
    made = Federation([[3, 2], [1, 4]], seed, same_encoder=False)
    evidence = made.evidence()
    found = nearest_shares(evidence, made.owners, num_nearest).share.tolist()
    wanted = []
    for k, c in ((0, 0), (0, 1), (1, 0), (1, 1)):
        candidates = [i for i in range(len(made.label)) if made.label[i] == c]
        nearest = sorted(candidates, key=lambda i: float(evidence.distance[k, i]))[:num_nearest]
        wanted.append(sum(int(made.client[i]) == k for i in nearest) / len(nearest))
    assert found == pytest.approx(wanted)


def test_aurocs_are_member_weighted_means_of_scikit_learns() -> None:
    made = Federation([[7, 2], [3, 9]], shift=0.4)
    evidence, report = made.evidence(), made.report()
    parts, weights = [], []
    for k, c in ((0, 0), (0, 1), (1, 0), (1, 1)):
        in_class = made.label == c
        truth = (made.client[in_class] == k).numpy()
        parts.append(roc_auc_score(truth, -evidence.distance[k, in_class].numpy()))
        weights.append(truth.sum())
    assert value(report, "attack_auroc_other_clients") == pytest.approx(np.average(parts, weights=weights))


def test_replicated_aurocs_are_those_of_scikit_learn_under_the_same_draws() -> None:
    made = Federation([[7, 4], [3, 9]], shift=0.4)
    evidence = made.evidence()
    cells = membership_cells(evidence, made.owners, made.val_label, "inner_product")
    stream = torch.Generator().manual_seed(3)
    weight = torch.randint(1, 4, (5, len(made.label)), generator=stream).float()
    other = torch.randint(1, 4, (5, 40), generator=stream).float()
    wanted = []
    for row in range(5):
        parts = [
            roc_auc_score(
                [1] * len(cell.member) + [0] * len(cell.other),
                np.concatenate([cell.member_score.numpy(), cell.other_score.numpy()]),
                sample_weight=np.concatenate([weight[row, cell.member], other[row, cell.other]]),
            )
            for cell in cells
        ]
        wanted.append(np.average(parts, weights=[len(cell.member) for cell in cells]))
    assert _mean_auroc(cells, weight, other).tolist() == pytest.approx(wanted)


def test_only_clients_that_sent_a_class_take_part_in_it() -> None:
    made = Federation([[4, 3], [5, 3]])
    evidence = made.evidence()
    count = evidence.count.clone()
    count[1, 0] = 0  # the second client drops class 0
    one = evidence.comparisons[1]
    gone = one._replace(distance=torch.where(made.label == 0, torch.inf, one.distance))
    dropped = PrototypeEvidence(evidence.sender, count, evidence.norm, [evidence.comparisons[0], gone])
    assert len(nearest_shares(dropped, made.owners, 1).share) == 3
    attributed = client_attribution(dropped, made.owners)
    assert len(attributed.record) == 4 + 3 + 3
    assert attributed.majority_rate == (4 + 3) / 10
    assert len(membership_cells(dropped, made.owners, None, "distance")) == 3


def test_a_lone_client_is_compared_with_validation_records_only() -> None:
    report = Federation([[6, 6]]).report()
    assert not any("other_clients" in name for name in report)
    assert {"attack_auroc_val", "inner_product_attack_auroc_val"} <= report.keys()


def test_intervals_hold_their_estimate_and_repeat_with_the_seed() -> None:
    made = Federation([[12, 6], [6, 9]], shift=0.3)
    first, second = made.report(num_replicates=200), made.report(num_replicates=200)
    assert first == second
    intervals = {name: found for name, found in first.items() if isinstance(found, BootstrapInterval)}
    assert set(intervals) == {
        "nearest_attribution_top1", "nearest_attribution_top5", "client_attribution", "attack_auroc_other_clients",
        "attack_auroc_val", "inner_product_attack_auroc_other_clients", "inner_product_attack_auroc_val",
    }  # fmt: skip
    for found in intervals.values():
        assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_segments_of_a_person_are_drawn_together_within_their_stratum() -> None:
    stratum = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    group = torch.tensor([7, 7, 3, 5, 7, 8, 8])
    drawn = group_weights(stratum, group, generator=torch.Generator().manual_seed(0), num_replicates=400)
    weight = torch.cat(list(drawn))
    assert weight.shape == (401, 7)
    assert bool((weight[0] == 1).all())
    assert torch.equal(weight[:, 0], weight[:, 1])
    assert torch.equal(weight[:, 5], weight[:, 6])
    assert not torch.equal(weight[:, 0], weight[:, 4])  # another stratum, drawn by itself
    assert bool((weight[:, [0, 2, 3]].sum(dim=1) == 3).all())  # three persons each time
    assert bool((weight[:, [4, 5]].sum(dim=1) == 2).all())
    assert float(weight[1:].mean()) == pytest.approx(1.0, abs=0.1)


def test_clipped_means_are_compared_with_clipped_candidates() -> None:
    record = torch.tensor([[30.0, 40.0], [0.1, 0.2], [3.0, -1.0]])
    made = compare_with_prototypes(
        torch.tensor([[0.6, 0.8]]), torch.tensor([True]), embedding=record, label=torch.zeros(3).long(),
        reference=record, reference_label=torch.zeros(3).long(), clip_radius=1.0,
    )  # fmt: skip
    assert float(made.distance[0]) == pytest.approx(0, abs=1e-7)
    assert made.reference_distance.tolist() == made.distance.tolist()


def test_classes_that_were_not_sent_are_infinitely_far() -> None:
    record = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    made = compare_with_prototypes(
        torch.ones(2, 3), torch.tensor([True, False]), embedding=record, label=torch.tensor([0, 0, 1, 1]),
        reference=record, reference_label=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip
    assert made.distance.isinf().tolist() == [False, False, True, True]
    assert made.inner_product[2:].tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding": torch.randn(4, 2)}, "dimension|features"),
        ({"embedding": torch.full((4, 3), math.nan)}, "NaN"),
        ({"label": torch.tensor([0, 0, 1, 2])}, "labels up to 2"),
        ({"reference_label": torch.tensor([0, 1, 1, 1])}, "Class 0 has 1 reference records"),
        ({"label": torch.zeros(3).long()}, "One entry per record"),
        ({"clip_radius": 0.0}, "clip_radius must be"),
    ],
)
def test_bad_comparisons_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "embedding": torch.randn(4, 3), "label": torch.tensor([0, 0, 1, 1]),
        "reference": torch.randn(4, 3), "reference_label": torch.tensor([0, 0, 1, 1]),
    }  # fmt: skip
    with pytest.raises(FedSynthError, match=message):
        compare_with_prototypes(torch.ones(2, 3), torch.ones(2).bool(), **(arguments | changes))


def test_bad_attacks_are_refused() -> None:
    made = Federation([[3, 3], [3, 3]])
    evidence = made.evidence()
    with pytest.raises(EvaluationError, match="num_nearest must be"):
        nearest_shares(evidence, made.owners, 0)
    with pytest.raises(EvaluationError, match="tolerance must be"):
        exact_match_rates(evidence, made.owners, 0.9)
    other = RecordOwners(made.label[1:], made.client[1:], made.client[1:])
    with pytest.raises(EvaluationError, match="compares 12 records, but 11"):
        client_attribution(evidence, other)
    with pytest.raises(EvaluationError, match="No record belongs"):
        client_attribution(evidence, RecordOwners(made.label, made.client + 5, made.client))
    with pytest.raises(EvaluationError, match="one row per sender"):
        PrototypeEvidence(evidence.sender, evidence.count, evidence.norm, evidence.comparisons[:1])
    empty = PrototypeEvidence(evidence.sender, 0 * evidence.count, evidence.norm, evidence.comparisons)
    with pytest.raises(EvaluationError, match="No prototype"):
        nearest_shares(empty, made.owners, 1)
    for option in ({"num_replicates": 0}, {"confidence": 1.0}):
        with pytest.raises(EvaluationError, match=f"{next(iter(option))} must be"):
            made.report(**option)
    none = torch.zeros(0).long()
    with pytest.raises(EvaluationError, match="There is no record"):
        next(group_weights(none, none, generator=torch.Generator(), num_replicates=1))
