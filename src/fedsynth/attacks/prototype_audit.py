"""All attacks on the prototypes of one modality, with intervals."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.attacks.group_bootstrap import group_weights
from fedsynth.attacks.prototype_evidence import PrototypeEvidence
from fedsynth.attacks.prototype_leakage import (
    MembershipCell,
    RecordOwners,
    client_attribution,
    exact_match_rates,
    membership_cells,
    nearest_shares,
)
from fedsynth.evaluation.bootstrap import BootstrapInterval
from fedsynth.evaluation.checks import EvaluationError
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS
from fedsynth.evaluation.participant_bootstrap import replicate_intervals

#: Score → prefix of its AUROCs.
SCORES = {"distance": "", "inner_product": "inner_product_"}


def prototype_leakage(
    evidence: PrototypeEvidence,
    members: RecordOwners,
    reference: RecordOwners,
    *,
    generator: torch.Generator,
    num_replicates: int = 2_000,
    confidence: float = 0.95,
) -> dict[str, BootstrapInterval | float]:
    """Every attack on one modality: plain numbers, and intervals where there is something to draw.

    | name | what | interval draws |
    |---|---|---|
    | ``nearest_attribution_top1``, ``_top5`` | `nearest_shares`, mean over prototypes | prototypes |
    | ``base_rate`` | what a random candidate achieves there | |
    | ``client_attribution`` | `client_attribution`, mean over records | persons of each client and class |
    | ``majority_rate`` | what naming the largest client achieves there | |
    | ``attack_auroc_other_clients`` | AUROC of -‖z - p‖ against other clients' records of the class | the same |
    | ``attack_auroc_val`` | the same against reference records of the class | and those of the reference |
    | ``inner_product_attack_auroc_…`` | the same with the inner product | |
    | ``exact_match_<count>`` | `exact_match_rates` | |
    | ``num_prototypes`` | prototypes attacked | |

    An AUROC is the mean over (client, class) of the AUROC within it, weighted by the client's records: scores of
    different spaces are never compared. Without a class that two clients hold, there is none against other clients.
    The models are held fixed.

    Raises:
        EvaluationError: For bad settings, records that are not those compared, or a reference without any record of
            the classes sent.
    """
    report: dict[str, BootstrapInterval | float] = {
        f"exact_match_{name}": rate for name, rate in exact_match_rates(evidence, members).items()
    }
    nearest = {f"nearest_attribution_top{k}": nearest_shares(evidence, members, k) for k in (1, 5)}
    base_rate = nearest["nearest_attribution_top1"].base_rate
    assigned = client_attribution(evidence, members)
    report |= {
        "base_rate": float(base_rate.mean()),
        "majority_rate": assigned.majority_rate,
        "num_prototypes": float(len(base_rate)),
    }
    draw: dict[str, Any] = {"generator": generator, "num_replicates": num_replicates}
    every = torch.zeros(len(base_rate), dtype=torch.int64)
    weight = _weights(every, torch.arange(len(every)), **draw)
    values = {name: _mean(found.share, weight) for name, found in nearest.items()}
    width = int(members.label.max()) + 1
    member_weight = _weights(members.client * width + members.label, members.group, **draw)
    reference_weight = _weights(reference.label, reference.group, **draw)
    values["client_attribution"] = _mean(assigned.credit, member_weight[:, assigned.record])
    for name, compared in _all_cells(evidence, members, reference).items():
        other_weight = reference_weight if name.endswith("_val") else member_weight
        values[name] = _mean_auroc(compared, member_weight, other_weight)
    return report | replicate_intervals(values, confidence)


def _weights(stratum: Tensor, group: Tensor, **draw: Any) -> Float[Tensor, "sample_and_replicate n"]:
    """Small whole numbers, exact in float32."""
    return torch.cat([part.float() for part in group_weights(stratum, group, **draw)])


def _mean(values: Float[Tensor, " n"], weight: Float[Tensor, "replicate n"]) -> Float[Tensor, " replicate"]:
    weight = weight.double()
    return (weight @ values.double()) / weight.sum(dim=1)


def _all_cells(
    evidence: PrototypeEvidence, members: RecordOwners, reference: RecordOwners
) -> dict[str, list[MembershipCell]]:
    """By name of the AUROC; none against other clients if there is nobody to compare with."""
    cells = {}
    for score, prefix in SCORES.items():
        if found := membership_cells(evidence, members, None, score):
            cells[f"{prefix}attack_auroc_other_clients"] = found
        found = membership_cells(evidence, members, reference.label, score)
        if not found:
            raise EvaluationError(
                "The reference records hold none of the classes of which prototypes were sent. Use a validation split "
                "that holds every class."
            )
        cells[f"{prefix}attack_auroc_val"] = found
    return cells


def _mean_auroc(
    cells: list[MembershipCell],
    member_weight: Float[Tensor, "replicate n"],
    other_weight: Float[Tensor, "replicate m"],
) -> Float[Tensor, " replicate"]:
    """Cells are weighted by their members, as many as there are, not as were drawn."""
    # fidelity: prototype-attack-cells
    parts = [
        len(cell.member) * _auroc(cell, member_weight[:, cell.member], other_weight[:, cell.other])
        for cell in cells
    ]
    return torch.stack(parts).sum(dim=0) / sum(len(cell.member) for cell in cells)


def _auroc(
    cell: MembershipCell, weight: Float[Tensor, "replicate a"], other_weight: Float[Tensor, "replicate b"]
) -> Float[Tensor, " replicate"]:
    """Σ_ij w_i v_j ([s_i > s_j] + [s_i = s_j] / 2) over Σ w Σ v, for all replicates in one product.

    A cell has few members and many non-members: one product costs less than sorting weights for each cell. Sums of
    float32 stay multiples of a half below 2²³, so they are exact.
    """
    wins = torch.zeros(len(weight), dtype=torch.float64)
    for rows in torch.arange(len(cell.member)).split(max(1, CHUNK_ELEMENTS // len(cell.other))):
        score = cell.member_score[rows].unsqueeze(1)
        beats = (score > cell.other_score).float() + (score == cell.other_score).float() / 2  # [a, b]
        wins += ((weight[:, rows] @ beats) * other_weight).sum(dim=1, dtype=torch.float64)
    return wins / (weight.sum(dim=1, dtype=torch.float64) * other_weight.sum(dim=1, dtype=torch.float64))
