"""Who holds what: Dirichlet image partition, record-level ECG split, whole records per client.

Every function is a deterministic function of its arguments and the state of the given torch generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64

from fedsynth.errors import ConfigError, DataError

MAX_DRAWS = 1000  # of a whole partition or split before giving up or repairing


def dirichlet_partition(
    labels: Int64[np.ndarray, " n"],
    num_clients: int,
    alpha: float,
    generator: torch.Generator,
    *,
    min_records: int,
) -> Int64[np.ndarray, " n"]:
    """Client of each record, class-wise Dirichlet(alpha) as in FedDP-PALD's data partition.

    For each class c, p_c ~ Dirichlet(alpha, ..., alpha) over clients, and the shuffled records of c are cut
    at the cumulative shares. The whole draw is repeated until every client holds `min_records` records (over
    all classes); after 100 failures, as happens for tiny alpha, random records move one by one from the
    largest client to the smallest. A client may still lack a class altogether.

    Args:
        labels: Class of each record.
        num_clients: K ≥ 1.
        alpha: Concentration > 0; small is heterogeneous, large is even.
        generator: Source of randomness.
        min_records: Least number of records a client gets, ≥ 1.

    Raises:
        ConfigError: If an argument is out of range, or there are fewer than K · min_records records.
    """
    _check_clients(num_clients)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"dirichlet_alpha must be a finite number > 0, got {alpha}. The paper uses 0.5.")
    if min_records < 1 or len(labels) < num_clients * min_records:
        raise ConfigError(
            f"{len(labels)} records cannot give {num_clients} clients min_records={min_records} (≥ 1) each. "
            "Use fewer clients or a smaller min_records."
        )
    rng = _numpy_generator(generator)
    # fidelity: min-client-records
    for _ in range(100):
        client = _draw_partition(np.asarray(labels), num_clients, alpha, rng)
        if np.bincount(client, minlength=num_clients).min() >= min_records:
            return client
    while (sizes := np.bincount(client, minlength=num_clients)).min() < min_records:
        moved = rng.choice(np.flatnonzero(client == sizes.argmax()))
        client[moved] = sizes.argmin()
    return client


def split_records(
    records: Int64[np.ndarray, " n"],
    labels: Int64[np.ndarray, " n"],
    *,
    fractions: Sequence[float],
    generator: torch.Generator,
    groups: Sequence[Sequence[int]],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Records of the train, validation and test splits; no record is in two of them.

    Sizes are the fractions of the number of records, rounded by largest remainder (48 records at .70/.15/.15
    give 34/7/7). Records of a group stay together. Draws are repeated until every split holds every class.

    Args:
        records: Record number of each beat.
        labels: Class of each beat.
        fractions: Shares of train, validation, test; positive, sum 1.
        generator: Source of randomness.
        groups: Record numbers that belong to one person; numbers that do not occur are ignored.

    Raises:
        ConfigError: If the fractions are invalid.
        DataError: If no draw in 1000 gives every split both classes (too few records, or one class only).
    """
    if len(fractions) != 3 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1.0, abs_tol=1e-9):
        raise ConfigError(f"fractions must be three positive numbers with sum 1, got {list(fractions)}.")
    units = _record_units(records, groups)
    sizes = _largest_remainder(sum(map(len, units)), fractions)  # fidelity: record-split-counts
    classes = _classes_by_record(records, labels)
    wanted = set(np.unique(labels).tolist())
    if len(wanted) < 2:
        raise DataError(
            f"All {len(labels)} beats have label {sorted(wanted)}; both classes are needed. Check label_rule."
        )
    for _ in range(MAX_DRAWS):
        splits = _fill(units, sizes, generator)
        if splits and all(set().union(*(classes[record] for record in split)) == wanted for split in splits):
            train, val, test = (tuple(sorted(split)) for split in splits)
            return train, val, test
    raise DataError(
        f"No record-level split of {sum(map(len, units))} records into {sizes} gives every split both "
        "classes. Use more records or other fractions."
    )


def assign_records(
    records: Int64[np.ndarray, " n"],
    labels: Int64[np.ndarray, " n"],
    num_clients: int,
    generator: torch.Generator,
    *,
    groups: Sequence[Sequence[int]],
) -> dict[int, int]:
    """Client of each ECG record: whole records, dealt round-robin in random order.

    Of 1000 draws the first is taken in which every client holds every class; if there is none, the draw with
    the fewest missing (client, class) cells. Records of a group go to one client. With fewer records (groups
    count once) than clients, the last clients hold none at all and depend on borrowed beats.

    Raises:
        ConfigError: If there is no client, or no record.
    """
    _check_clients(num_clients)
    units = _record_units(records, groups)
    if not units:
        raise ConfigError(f"There is no ECG record for {num_clients} clients. Check split_fractions.")
    classes = _classes_by_record(records, labels)
    num_classes = len(np.unique(labels))
    best: dict[int, int] = {}
    fewest = num_clients * num_classes + 1
    # fidelity: record-assignment
    for _ in range(MAX_DRAWS):
        order = torch.randperm(len(units), generator=generator).tolist()
        assignment = {
            record: place % num_clients for place, unit in enumerate(order) for record in units[unit]
        }
        held = {(client, label) for record, client in assignment.items() for label in classes[record]}
        missing = num_clients * num_classes - len(held)
        if missing < fewest:
            best, fewest = assignment, missing
        if missing == 0:
            break
    return dict(sorted(best.items()))


def data_report(
    labels: Int64[np.ndarray, " n"], client: Int64[np.ndarray, " n"], num_clients: int
) -> list[dict[str, int]]:
    """Number of records of each class at each client: ``report[client][str(label)]``, zeros included."""
    classes = np.unique(labels).tolist()
    return [
        {str(label): int(((client == index) & (labels == label)).sum()) for label in classes}
        for index in range(num_clients)
    ]


def _check_clients(num_clients: int) -> None:
    if num_clients < 1:
        raise ConfigError(f"num_clients must be ≥ 1, got {num_clients}. The paper uses 5.")


def _numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """Torch's public Dirichlet sampler takes no generator; numpy's does and is exact for tiny alpha."""
    return np.random.default_rng(int(torch.randint(2**63 - 1, (), generator=generator)))


def _draw_partition(
    labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    client = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        share = rng.dirichlet(np.full(num_clients, alpha))
        cuts = np.floor(np.cumsum(share[:-1]) * len(members) + 0.5).astype(np.int64)
        for index, part in enumerate(np.split(members, cuts)):
            client[part] = index
    return client


def _record_units(records: np.ndarray, groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Records that move together, as tuples in order of their first record."""
    present = set(np.unique(records).tolist())
    grouped = [tuple(record for record in group if record in present) for group in groups]
    members = {record for group in grouped for record in group}
    return sorted([group for group in grouped if group] + [(record,) for record in present - members])


def _classes_by_record(records: np.ndarray, labels: np.ndarray) -> dict[int, set[int]]:
    return {int(record): set(labels[records == record].tolist()) for record in np.unique(records)}


def _largest_remainder(total: int, fractions: Sequence[float]) -> list[int]:
    exact = [total * fraction for fraction in fractions]
    sizes = [math.floor(value + 1e-9) for value in exact]
    order = sorted(range(len(exact)), key=lambda index: (sizes[index] - exact[index], index))
    for index in order[: total - sum(sizes)]:
        sizes[index] += 1
    return sizes


def _fill(units: list[tuple[int, ...]], sizes: list[int], generator: torch.Generator) -> list[list[int]]:
    """Put shuffled units into the first split with room; empty if a group fits nowhere."""
    splits: list[list[int]] = [[] for _ in sizes]
    for index in torch.randperm(len(units), generator=generator).tolist():
        unit = units[index]
        split = next((s for s, size in zip(splits, sizes, strict=True) if len(s) + len(unit) <= size), None)
        if split is None:
            return []
        split.extend(unit)
    return splits
