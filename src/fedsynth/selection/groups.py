"""Images with one label, or with one combination of labels: what counts and mixes are taken over."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.selection.inputs import SelectionInputError

#: The name of an image without any label of a multi-label task.
NO_LABEL = "no label"


def label_groups(
    targets: Float[Tensor, "n k"], classes: Sequence[str]
) -> tuple[Int64[Tensor, " n"], tuple[str, ...]]:
    """The group of each image and the groups' names.

    Of one class an image, the groups are the classes in their order, those without images left out. Of several
    labels an image, each combination that occurs is a group, ``"Edema + Pneumonia"``: an image made in place of
    another has exactly its labels.

    Args:
        targets: 0 or 1 for each image and class.
        classes: Their names.

    Raises:
        SelectionInputError: If there are no images, or other than k names.
    """
    if targets.ndim != 2 or not len(targets) or targets.shape[1] != len(classes):
        raise SelectionInputError(
            f"Targets must be [images, {len(classes)} classes] with at least one image, got {list(targets.shape)}."
        )
    bits = targets.to(torch.uint8)
    # Sorted by the first label they have, then by the others: the order of the classes.
    patterns, group = torch.unique(1 - bits, dim=0, return_inverse=True)
    names = tuple(
        " + ".join(name for name, absent in zip(classes, pattern, strict=True) if not absent) or NO_LABEL
        for pattern in patterns.tolist()
    )
    return group, names


def stratified_rows(
    group: Int64[Tensor, " n"], number: int, generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """Random rows, as many of each group as its share asks for (largest remainders), in rising order.

    Args:
        group: Of each row.
        number: Rows wanted.
        generator: Decides which.

    Raises:
        SelectionInputError: If there are fewer rows than wanted, or none is.
    """
    if not 1 <= number <= len(group):
        raise SelectionInputError(f"The number of rows must lie in 1 … {len(group)}, got {number}.")
    sizes = torch.bincount(group)
    share = sizes.double() * number / len(group)
    wanted = share.floor().long()
    for index in (share - wanted).sort(descending=True, stable=True).indices[: number - int(wanted.sum())]:
        wanted[index] += 1
    shuffled = torch.randperm(len(group), generator=generator)
    taken = [shuffled[group[shuffled] == g][: int(wanted[g])] for g in range(len(sizes))]
    return torch.cat(taken).sort().values
