"""Bootstrap weights of records that are drawn person by person within strata.

A person's records (segments of one recording, say) resemble each other: drawing them one by one would make intervals
too narrow. Strata keep their number of persons in every replicate, so none is ever empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsynth.evaluation.checks import EvaluationError, check_generator, check_integer
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS
from fedsynth.records import check_indices


def group_weights(
    stratum: Int64[Tensor, " n"],
    group: Int64[Tensor, " n"],
    *,
    generator: torch.Generator,
    num_replicates: int,
) -> Iterator[Float[Tensor, "part n"]]:
    """First the sample (all ones), then how often each record is drawn in each replicate, a few at a time.

    All records of a person in a stratum are drawn together.

    Args:
        stratum: Persons of one stratum are exchanged for each other only.
        group: The person a record belongs to.
        generator: CPU generator of the draws.
        num_replicates: At least 1.

    Raises:
        EvaluationError: If there is no record, or a setting is out of range.
        InvalidTensorError: If the indices are not int64 [n].
    """
    check_generator(generator)
    check_indices(stratum=stratum, group=group)
    num_replicates = check_integer(num_replicates, "num_replicates", remedy="The usual value is 2000.")
    if len(stratum) == 0:
        raise EvaluationError("There is no record to draw. Look for an empty split.")
    persons, person = torch.stack([stratum, group], dim=1).unique(dim=0, return_inverse=True)
    sizes = persons[:, 0].unique_consecutive(return_counts=True)[1].tolist()
    yield torch.ones(1, len(stratum), dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // len(stratum))
    for start in range(0, num_replicates, step):
        size = min(step, num_replicates - start)
        drawn = [_multiplicities(size, number, generator) for number in sizes]
        yield torch.cat(drawn, dim=1)[:, person]


def _multiplicities(size: int, number: int, generator: torch.Generator) -> Float[Tensor, "size number"]:
    index = torch.randint(number, (size, number), generator=generator)
    empty = torch.zeros(size, number, dtype=torch.float64)
    return empty.scatter_add_(1, index, torch.ones((), dtype=torch.float64).expand(size, number))
