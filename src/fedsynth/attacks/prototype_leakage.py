"""What class prototypes that clients upload give away about single records, to a server that knows the model.

Threat model: the server is honest but curious. In one round it holds the prototypes p_{k,c} of every client k, the
weights the client sent with them, and candidate records with their classes; it asks which of them are the client's.

| attack                | question                                               | chance        |
|-----------------------|--------------------------------------------------------|---------------|
| nearest attribution   | is the candidate nearest to p_{k,c} a record of k?     | n_{k,c} / N_c |
| client attribution    | is p_{k,c} of all clients nearest to k's own record?   | largest share |
| membership            | do k's records score above others, AUROC               | 0.5           |
| exact match           | does a candidate equal the prototype? (n_{k,c} = 1)    | 0             |

Clients that differ in their patients or devices are told apart by these differences too, so "other clients" measures
attribution, not membership alone; validation records differ from training records by the split. Neither is evidence
of safety: a stronger attack may exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.attacks.prototype_evidence import PrototypeEvidence
from fedsynth.evaluation.checks import EvaluationError, check_integer, check_number
from fedsynth.records import check_indices

#: Lower ends of the buckets of exact matches, by records behind a prototype.
BUCKETS = (1, 2, 5, 10)
# Embeddings of one record differ by about 1e-6 between batch sizes and devices.
MATCH_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class RecordOwners:
    """Whose the records are.

    Attributes:
        label: Class of each record.
        client: Client of each record; not read of reference records.
        group: Person of each record.
    """

    label: Int64[Tensor, " n"]
    client: Int64[Tensor, " n"]
    group: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        check_indices(label=self.label, client=self.client, group=self.group)


class NearestShares(NamedTuple):
    """One entry per prototype that was sent.

    Attributes:
        share: Of the nearest candidates, those that are the client's own records.
        base_rate: Of all candidates of the class.
    """

    share: Float[Tensor, " prototype"]
    base_rate: Float[Tensor, " prototype"]


def nearest_shares(evidence: PrototypeEvidence, owners: RecordOwners, num_nearest: int) -> NearestShares:
    """Nearest-record attribution: how many of the records nearest to a prototype are its client's.

    Candidates are all training records of the class, of all clients. Records at the same distance count in equal
    parts, as if ties were broken at random, so that the order of records does not matter.

    Args:
        evidence: Of one modality.
        owners: Of the records compared.
        num_nearest: 1 for the nearest alone; at most all candidates are taken.

    Raises:
        EvaluationError: If ``num_nearest`` is no integer ≥ 1, the records are not those compared, or there is no
            prototype with a candidate.
    """
    num_nearest = check_integer(num_nearest, "num_nearest")
    shares, rates = [], []
    for _, client, in_class, distance in _prototypes(evidence, owners):
        own = (owners.client[in_class] == client).double()
        wanted = min(num_nearest, len(own))
        edge = distance.kthvalue(wanted).values
        inside, tied = distance < edge, distance == edge
        weight = inside.double() + tied * ((wanted - inside.sum()) / tied.sum())
        shares.append((weight * own).sum() / wanted)
        rates.append(own.mean())
    if not shares:
        raise EvaluationError(
            "No prototype of a class with records was sent. Lower min_class_records, or take fewer clients."
        )
    return NearestShares(torch.stack(shares), torch.stack(rates))


class ClientAttribution(NamedTuple):
    """One entry per training record whose client sent a prototype of its class.

    Attributes:
        record: Its row.
        credit: 1 if its own client's prototype is the nearest, 1/j if j tie, 0 otherwise.
        majority_rate: What naming the client with most such records of each class would achieve.
    """

    record: Int64[Tensor, " record"]
    credit: Float[Tensor, " record"]
    majority_rate: float


def client_attribution(evidence: PrototypeEvidence, owners: RecordOwners) -> ClientAttribution:
    """Assign every record to the client whose prototype of its class is nearest, in that client's own space.

    Raises:
        EvaluationError: If the records are not those compared, or no client sent anything.
    """
    distance = _checked_distance(evidence, owners)
    is_own = evidence.sender.unsqueeze(1) == owners.client  # [sender, n]
    record = (is_own & distance.isfinite()).any(dim=0).nonzero().flatten()
    if len(record) == 0:
        raise EvaluationError(
            "No record belongs to a client that sent a prototype of its class. Check the clients' numbers."
        )
    tied = distance[:, record] == distance[:, record].min(dim=0).values
    credit = (tied & is_own[:, record]).sum(dim=0) / tied.sum(dim=0).double()
    cells = torch.stack([owners.label[record], owners.client[record]], dim=1)
    kinds, sizes = cells.unique(dim=0, return_counts=True)
    majority = sum(int(sizes[kinds[:, 0] == c].max()) for c in kinds[:, 0].unique())
    return ClientAttribution(record, credit, majority / len(record))


def exact_match_rates(
    evidence: PrototypeEvidence, owners: RecordOwners, tolerance: float = MATCH_TOLERANCE
) -> dict[str, float]:
    """Share of prototypes that equal a record of their client, by the number of records behind them.

    A mean of one record is that record's embedding. Equal means: within ``tolerance`` times the prototype's norm.

    Args:
        evidence: Of one modality.
        owners: Of the records compared.
        tolerance: Relative, in [0, 0.5]; float32 embeddings differ by about 1e-6 between batch sizes and devices.

    Returns:
        By bucket of counts: ``1``, ``2-4``, ``5-9``, ``10+``; buckets without prototypes are left out.

    Raises:
        EvaluationError: If the tolerance is out of range, or the records are not those compared.
    """
    tolerance = check_number(tolerance, "tolerance", low=0.0, high=0.5)
    found: dict[str, list[float]] = {}
    for row, client, in_class, distance in _prototypes(evidence, owners):
        label = int(owners.label[in_class][0])
        own = distance[owners.client[in_class] == client]
        is_match = bool((own <= tolerance * evidence.norm[row, label]).any())
        found.setdefault(_bucket(int(evidence.count[row, label])), []).append(float(is_match))
    return {name: sum(matches) / len(matches) for name, matches in sorted(found.items())}


@dataclass(frozen=True, eq=False)
class MembershipCell:
    """Members and non-members of one client and class, and their scores; larger means "more likely a member".

    Attributes:
        member: Rows among the training records.
        other: Rows among the training records, or among those of the reference.
    """

    member: Int64[Tensor, " member"]
    member_score: Float[Tensor, " member"]
    other: Int64[Tensor, " other"]
    other_score: Float[Tensor, " other"]


def membership_cells(
    evidence: PrototypeEvidence, owners: RecordOwners, reference_label: Int64[Tensor, " m"] | None, score: str
) -> list[MembershipCell]:
    """One comparison per prototype that has members and non-members of its class.

    Args:
        evidence: Of one modality.
        owners: Of the training records.
        reference_label: Classes of the reference records, which are then the non-members; None takes the training
            records of other clients.
        score: ``distance`` or ``inner_product``.

    Raises:
        EvaluationError: If the records are not those compared.
    """
    records, references = evidence.score(score)
    cells = []
    for row, client, in_class, _ in _prototypes(evidence, owners):
        is_own = owners.client[in_class] == client
        member, other, scores = in_class[is_own], in_class[~is_own], records[row]
        if reference_label is not None:
            other = (reference_label == int(owners.label[in_class[0]])).nonzero().flatten()
            scores = references[row]
        if len(member) and len(other):
            cells.append(MembershipCell(member, records[row, member], other, scores[other]))
    return cells


def _prototypes(
    evidence: PrototypeEvidence, owners: RecordOwners
) -> Iterator[tuple[int, int, Int64[Tensor, " candidate"], Float[Tensor, " candidate"]]]:
    """Row, client, candidates of the class and their distances, for every prototype with a candidate."""
    distance = _checked_distance(evidence, owners)
    for row, label in evidence.known.nonzero().tolist():
        in_class = (owners.label == label).nonzero().flatten()
        if len(in_class):
            yield row, int(evidence.sender[row]), in_class, distance[row, in_class]


def _checked_distance(evidence: PrototypeEvidence, owners: RecordOwners) -> Float[Tensor, "sender n"]:
    distance = evidence.distance
    if distance.shape[1] != len(owners.label):
        raise EvaluationError(
            f"The evidence compares {distance.shape[1]} records, but {len(owners.label)} have owners."
        )
    return distance


def _bucket(count: int) -> str:
    low = max(start for start in BUCKETS if start <= count)
    above = [start for start in BUCKETS if start > low]
    if not above:
        return f"{low}+"
    return f"{low}" if above[0] == low + 1 else f"{low}-{above[0] - 1}"
