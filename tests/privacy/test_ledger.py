from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest

from fedsynth.errors import ArtifactError, PrivacyError
from fedsynth.privacy import Adjacency, Ledger, LedgerEntry, LedgerPart, PrivacyParameterError, share_mu


@pytest.fixture
def entry() -> LedgerEntry:
    return LedgerEntry(
        stage="release",
        mechanism="analytic Gaussian",
        epsilon=4.0,
        delta=1e-5,
        adjacency=Adjacency.REPLACE_ONE,
        covered="shard means",
        not_covered=("counts", "variances"),
        num_releases=40,
        sensitivity_range=(0.06, 4.4),
        noise_std_range=(0.07, 4.8),
    )


@pytest.fixture
def uncovered() -> LedgerEntry:
    return LedgerEntry.without_guarantee(stage="encoder", published=("weights",))


def test_epsilon_and_delta_add_up(entry):
    ledger = Ledger([entry])
    ledger.add(replace(entry, epsilon=1.0))
    assert ledger.total() == pytest.approx((5.0, 2e-5))
    assert [each.epsilon for each in ledger.entries] == [4.0, 1.0]


def test_empty_ledger_costs_nothing():
    assert Ledger().total() == (0.0, 0.0)


def test_one_step_without_guarantee_makes_the_total_infinite(entry, uncovered):
    total = Ledger([entry, uncovered]).total()
    assert math.isinf(total.epsilon)
    assert total.delta == 1e-5


def test_different_adjacencies_do_not_add_up(entry):
    other = replace(entry, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(PrivacyError, match=r"add_or_remove_one, replace_one"):
        Ledger([entry, other]).total()


def test_records_survive_strict_json(entry, uncovered):
    ledger = Ledger([entry, uncovered])
    text = json.dumps(ledger.to_records(), allow_nan=False)
    assert Ledger.from_records(json.loads(text)).entries == ledger.entries


def test_records_of_another_version_are_refused(entry):
    record = entry.to_record()
    with pytest.raises(ArtifactError, match=r"unknown keys \['sigma'\]"):
        Ledger.from_records([record | {"sigma": 1}])
    with pytest.raises(ArtifactError, match="cannot be read"):
        Ledger.from_records([record | {"adjacency": "substitute"}])
    record.pop("delta")
    with pytest.raises(ArtifactError, match=r"missing keys \['delta'\]"):
        Ledger.from_records([record])


def test_entries_cannot_be_changed(entry):
    with pytest.raises(FrozenInstanceError):
        entry.epsilon = 0.1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"epsilon": -1.0}, PrivacyParameterError),
        ({"delta": 0.0}, PrivacyParameterError),
        ({"num_releases": -1}, PrivacyParameterError),
        ({"adjacency": None}, PrivacyError),
        ({"noise_std_range": (0.0, 1.0)}, PrivacyError),
    ],
)
def test_claims_without_substance_are_refused(entry, change, error):
    with pytest.raises(error, match="release"):
        replace(entry, **change)


def composed(entry, epsilon=4.0, scale=1.0):
    parts = tuple(
        LedgerPart(name, share, 2.0, scale * 2.0 / share_mu(share, epsilon=epsilon, delta=1e-5), 1)
        for name, share in (("counts", 0.25), ("means", 0.75))
    )
    return replace(entry, parts=parts, adjacency=Adjacency.REPLACE_ONE_ANY_LABEL, epsilon=epsilon)


def test_parts_survive_strict_json_and_entries_without_them_look_as_before(entry):
    whole = composed(entry)
    text = json.dumps(Ledger([whole]).to_records(), allow_nan=False)
    assert Ledger.from_records(json.loads(text)).entries == (whole,)
    assert "parts" not in entry.to_record()


def test_parts_that_cost_more_than_the_claim_are_refused(entry):
    assert composed(entry, scale=1.0).parts
    with pytest.raises(PrivacyError, match=r"claims epsilon=4\.0 but its parts cost"):
        composed(entry, scale=0.99)
    with pytest.raises(PrivacyError, match="part without noise"):
        replace(composed(entry), parts=(LedgerPart("means", 1.0, 2.0, 0.0, 1),))


def test_guarantees_for_any_label_add_up_under_the_weaker_relation(entry):
    ledger = Ledger([entry, composed(entry)])
    assert ledger.total() == pytest.approx((8.0, 2e-5))
    assert ledger.adjacency is Adjacency.REPLACE_ONE
    assert Ledger([composed(entry)]).adjacency is Adjacency.REPLACE_ONE_ANY_LABEL
    assert Ledger().adjacency is None
