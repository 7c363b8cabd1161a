"""What a server can compute about every record from one client's prototypes: distances and inner products.

The server holds the prototypes p_{k,c} that client k sent in a round and the weights the client sent with them, so it
can embed any candidate record as the client did.

| symbol  | name           | shape          |
|---------|----------------|----------------|
| z_i     | embedding      | [n dim]        |
| p_{k,c} | prototype      | [class dim]    |
| μ_c     | mean of the reference records of the class | [dim] |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, check_points, check_same_space
from fedsynth.privacy.clipping import clip_to_radius
from fedsynth.records import check_indices


class Comparison(NamedTuple):
    """Records and reference records against the prototype of their own class, of one client and modality.

    Where the client sent no prototype of the class, distances are ∞ and inner products -∞.
    """

    distance: Float[Tensor, " n"]
    inner_product: Float[Tensor, " n"]
    reference_distance: Float[Tensor, " m"]
    reference_inner_product: Float[Tensor, " m"]


def compare_with_prototypes(
    prototype: Float[Tensor, "class dim"],
    known: Bool[Tensor, " class"],
    *,
    embedding: Float[Tensor, "n dim"],
    label: Int64[Tensor, " n"],
    reference: Float[Tensor, "m dim"],
    reference_label: Int64[Tensor, " m"],
    clip_radius: float | None = None,
) -> Comparison:
    """‖z - p_c‖ and ⟨z - μ_c, p_c - μ_c⟩ of every record, computed in float64.

    The distance is what nearest-record attacks use. The inner product is the tracing score of Dwork et al., "Robust
    Traceability from Trace Amounts", FOCS 2015: a record's own part of the mean, 1/n of it, adds ‖z - μ‖²/n to its
    score, while its distance from the center, which dominates ‖z - p‖, drops out. A reference record is compared
    with the μ of the others, so that it is not pulled toward the center it helped to define.

    Args:
        prototype: What the client sent.
        known: Which classes it sent.
        embedding: Candidates under the client's weights.
        label: Their classes.
        reference: Records of nobody's training set, under the same weights: centers, and non-members.
        reference_label: Their classes.
        clip_radius: C, if the prototypes are means of clipped embeddings: candidates are clipped alike.

    Raises:
        EvaluationError: For bad points, labels beyond the prototypes, or a known class of fewer than two reference
            records.
        PrivacyParameterError: If C is not positive and finite.
    """
    p = check_points(prototype, "prototype").double().cpu()
    z, r = check_points(embedding, "embedding").cpu(), check_points(reference, "reference").cpu()
    check_same_space(p, z, ("prototype", "embedding"))
    check_same_space(p, r, ("prototype", "reference"))
    check_indices(num_records=len(z), label=label)
    check_indices(num_records=len(r), reference_label=reference_label)
    if max(int(label.max()), int(reference_label.max())) >= len(p) or len(known) != len(p):
        raise EvaluationError(
            f"There are prototypes of {len(p)} classes ({len(known)} marked known or not), but labels up to "
            f"{max(int(label.max()), int(reference_label.max()))}."
        )
    z, r = (x.double() if clip_radius is None else clip_to_radius(x, clip_radius) for x in (z, r))
    z_distance, r_distance = (
        torch.where(known[classes], (x - p[classes]).norm(dim=1), torch.inf)
        for x, classes in ((z, label), (r, reference_label))
    )
    inner, reference_inner = torch.full_like(z_distance, -torch.inf), torch.full_like(r_distance, -torch.inf)
    for c in known.nonzero().flatten().tolist():
        others = r[reference_label == c]
        if len(others) < 2:
            raise EvaluationError(
                f"Class {c} has {len(others)} reference records, at least 2 are needed for a center. Use a validation "
                "split that holds every class."
            )
        center = others.mean(dim=0)
        inner[label == c] = (z[label == c] - center) @ (p[c] - center)
        own = (len(others) * center - others) / (len(others) - 1)  # each without itself
        reference_inner[reference_label == c] = ((others - own) * (p[c] - own)).sum(dim=1)
    return Comparison(z_distance, inner, r_distance, reference_inner)


@dataclass(frozen=True, eq=False)
class PrototypeEvidence:
    """One modality of one round: what each client sent, compared with every record in that client's own space.

    Attributes:
        sender: Client of each row.
        count: Records behind each prototype, as sent; 0: not sent.
        norm: Norm of each prototype.
        comparisons: One per sender.
    """

    sender: Int64[Tensor, " sender"]
    count: Int64[Tensor, "sender class"]
    norm: Float[Tensor, "sender class"]
    comparisons: Sequence[Comparison]

    def __post_init__(self) -> None:
        if not len(self.sender) == len(self.count) == len(self.norm) == len(self.comparisons) > 0:
            raise EvaluationError(
                f"Evidence needs one row per sender, at least one, got {len(self.sender)} senders, {len(self.count)} "
                f"counts, {len(self.norm)} norms and {len(self.comparisons)} comparisons."
            )

    @property
    def known(self) -> Bool[Tensor, "sender class"]:
        """Which classes each client sent."""
        return self.count > 0

    @property
    def distance(self) -> Float[Tensor, "sender n"]:
        """Of every record to the prototype of its class, by sender."""
        return torch.stack([one.distance for one in self.comparisons])

    def score(self, name: str) -> tuple[Float[Tensor, "sender n"], Float[Tensor, "sender m"]]:
        """A membership score of records and of reference records; larger means "more likely a member".

        Args:
            name: ``distance`` (-‖z - p‖, which ranks as its square does) or ``inner_product``.
        """
        sign = -1 if name == "distance" else 1
        records = [sign * getattr(one, name) for one in self.comparisons]
        references = [sign * getattr(one, f"reference_{name}") for one in self.comparisons]
        return torch.stack(records), torch.stack(references)
