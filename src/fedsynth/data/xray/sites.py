"""Hospitals made of one data set: patient-disjoint, with different mixes of classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64

from fedsynth.data.partition import dirichlet_partition
from fedsynth.data.xray.patients import Patients, shuffled
from fedsynth.errors import ConfigError, DataError

MAX_DRAWS = 100


def assign_sites(
    patients: Patients,
    classes: Sequence[str],
    *,
    num_sites: int,
    shares: Sequence[Sequence[float]] | None,
    alpha: float,
    min_patients: int,
    generator: torch.Generator,
) -> Int64[np.ndarray, " patient"]:
    """Site of each patient.

    With ``shares`` row s, column c is the share of the patients of class c that site s gets. Without, the shares of each
    class are one draw of Dirichlet(α, …, α) over the sites, repeated until every site has ``min_patients`` patients of
    every class. Within a class those with one image, with several, and of the publisher's test set are dealt apart.

    Args:
        patients: All patients of the data set.
        classes: Names of the classes.
        num_sites: S ≥ 1.
        shares: S rows of one number ≥ 0 a class; the columns sum to 1. None draws them.
        alpha: Dirichlet concentration > 0; small is heterogeneous. Unused with ``shares``.
        min_patients: Least number of patients of a class at a site, ≥ 1.
        generator: Source of randomness.

    Raises:
        ConfigError: If the shares do not fit sites and classes, or α is no positive number.
        DataError: If a site lacks a class; names every such site and class with its count.
    """
    if shares is not None:
        check_shares(shares, num_sites, len(classes))
        site = _cut(patients, np.asarray(shares, dtype=np.float64), generator)
        count = _count(site, patients, num_sites, len(classes))
    else:
        for _ in range(MAX_DRAWS):
            site = dirichlet_partition(patients.main_class, num_sites, alpha, generator, min_records=1)
            count = _count(site, patients, num_sites, len(classes))
            if (count >= min_patients).all():
                break
    _check_present(count, classes, min_patients, "site_shares" if shares is not None else "dirichlet_alpha")
    return site


def check_shares(shares: Sequence[Sequence[float]], num_sites: int, num_classes: int | None) -> None:
    """Refuse a table of shares that does not divide every class among the sites.

    Raises:
        ConfigError: For a wrong number of rows or columns, a negative share, or a column that does not sum to 1.
    """
    widths = {len(row) for row in shares}
    if len(shares) != num_sites or len(widths) != 1 or (num_classes is not None and widths != {num_classes}):
        columns = f"{num_classes} columns (one a class)" if num_classes is not None else "equally long rows"
        raise ConfigError(
            f"site_shares must have {num_sites} rows (one a site) and {columns}, got {[list(row) for row in shares]}."
        )
    table = np.asarray(shares, dtype=np.float64)
    if (table < 0).any() or not np.allclose(table.sum(0), 1.0, atol=1e-6):
        raise ConfigError(
            f"Every column of site_shares must hold shares ≥ 0 with sum 1, got {table.tolist()} with sums "
            f"{table.sum(0).round(6).tolist()}."
        )


def _cut(patients: Patients, shares: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Each stratum in random order, cut at the cumulative shares of its class."""
    site = np.empty(len(patients), dtype=np.int64)
    stratum, order = patients.stratum(np.ones(len(patients), dtype=bool)), shuffled(len(patients), generator)
    for value in np.unique(stratum):
        members = order[stratum[order] == value]
        share = shares[:, patients.main_class[members[0]]]
        cuts = np.floor(np.cumsum(share)[:-1] * len(members) + 0.5).astype(np.int64)
        for index, part in enumerate(np.split(members, cuts)):
            site[part] = index
    return site


def _count(site: np.ndarray, patients: Patients, num_sites: int, num_classes: int) -> np.ndarray:
    count = np.zeros((num_sites, num_classes), dtype=np.int64)
    np.add.at(count, (site, patients.main_class), 1)
    return count


def _check_present(count: np.ndarray, classes: Sequence[str], min_patients: int, key: str) -> None:
    lacking = [
        f"site {site} has {count[site, index]} of class {name}"
        for site in range(len(count))
        for index, name in enumerate(classes)
        if count[site, index] < min_patients
    ]
    if lacking:
        raise DataError(
            f"Every site needs at least {min_patients} patients of every class, but {'; '.join(lacking)}. "
            f"Change {key}, use fewer sites, lower min_patients, or leave the class out (classes)."
        )
