"""From all images of a data set to the train, validation and test images of one site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from fedsynth.data.xray.images import XrayImages, identical_groups
from fedsynth.data.xray.patients import Patients, patients_of
from fedsynth.data.xray.sites import assign_sites
from fedsynth.data.xray.splits import SPLITS, limit_images, split_patients
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator

MAX_DRAWS = 100  # of a split before giving up: a rare label can miss a split by chance
SHOWN = 3  # patients named in a message


@dataclass(frozen=True)
class SiteRequest:
    """Which images of a data set a site has, and how they are divided.

    Attributes:
        site: Number of the site; None takes the patients of all sites, each in the split it is in at its site.
        num_sites: Sites that the patients are divided among.
        site_shares: See ``assign_sites``.
        dirichlet_alpha: See ``assign_sites``.
        min_patients: Least number of patients of a class at a site.
        site_seed: Of who is at which site.
        split: ``patient``: all patients are divided anew; ``official``: the publisher's test images stay test images.
        split_fractions: Shares of train, validation and test images.
        split_seed: Of who is in which split.
        max_images: Most images of train, validation and test of a site; None takes all.
    """

    site: int | None = None
    num_sites: int = 1
    site_shares: Sequence[Sequence[float]] | None = None
    dirichlet_alpha: float = 1.0
    min_patients: int = 3
    site_seed: int = 0
    split: str = "patient"
    split_fractions: Sequence[float] = (0.7, 0.1, 0.2)
    split_seed: int = 0
    max_images: Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class SiteData:
    """Rows of the data set by split, and counts for the notes of a stage."""

    rows: dict[str, Int64[np.ndarray, " rows"]]
    report: dict[str, Any]


def divide(images: XrayImages, request: SiteRequest) -> SiteData:
    """The images of one site in three splits that share no patient.

    Who is at which site depends on ``site_seed`` alone, who of them is in which split on ``split_seed`` and the site.
    With ``site=None`` each split holds that of every site: what is trained on all sites has seen no test patient of any.

    Raises:
        ConfigError: For values that do not fit the data set.
        DataError: If a patient has images on both sides of the publisher's split, or a class is missing at a site or
            in a split.
    """
    if request.split == "official":
        _check_official(images)
    patients = patients_of(images)
    if request.site is not None or request.num_sites == 1:
        rows = _rows_of_site(images, patients, request)
    else:
        parts = [
            _rows_of_site(images, patients, replace(request, site=site)) for site in range(request.num_sites)
        ]
        rows = {name: np.sort(np.concatenate([part[name] for part in parts])) for name in SPLITS}
    return SiteData(rows, _report(images, patients, rows))


def _rows_of_site(images: XrayImages, patients: Patients, request: SiteRequest) -> dict[str, np.ndarray]:
    """Rows by split of one site, or of all patients where there is one site only."""
    chosen = _at_site(images, patients, request)
    stream = generator(request.split_seed, "xray split", "all" if request.site is None else request.site)
    for _ in range(MAX_DRAWS):
        rows = _draw_rows(patients, chosen, request, stream)
        missing = _missing_classes(images, rows)
        if not missing:
            return rows
    where = "" if request.site is None else f" at site {request.site}"
    raise DataError(
        f"No split in {MAX_DRAWS} gives every part every class: the last one{where} lacks {missing}. Use other "
        "shares (split_fractions, site_shares or dirichlet_alpha), fewer sites, a larger max_images, or leave the "
        "class out (classes)."
    )


def _draw_rows(
    patients: Patients, chosen: np.ndarray, request: SiteRequest, stream: torch.Generator
) -> dict[str, np.ndarray]:
    """One random split of the chosen patients, as rows of the data set."""
    split = split_patients(
        patients,
        chosen,
        fractions=request.split_fractions,
        official=request.split == "official",
        generator=stream,
    )
    rows = {}
    for number, name in enumerate(SPLITS):
        members = split == number
        if request.max_images is not None:
            members = limit_images(patients, members, request.max_images[number], stream)
        rows[name] = np.flatnonzero(members[patients.row_patient])
    return rows


def _at_site(images: XrayImages, patients: Patients, request: SiteRequest) -> np.ndarray:
    if request.site is None:
        return np.ones(len(patients), dtype=bool)
    if not 0 <= request.site < request.num_sites:
        raise ConfigError(f"site must be null or one of 0 … {request.num_sites - 1}, got {request.site}.")
    site = assign_sites(
        patients,
        images.classes,
        num_sites=request.num_sites,
        shares=request.site_shares,
        alpha=request.dirichlet_alpha,
        min_patients=request.min_patients,
        generator=generator(request.site_seed, "xray sites"),
    )
    return site == request.site


def _check_official(images: XrayImages) -> None:
    if images.official_test is None:
        raise ConfigError(
            "split=official needs a data set with the publisher's test list. Say split=patient."
        )
    both = np.intersect1d(images.patient_key[images.official_test], images.patient_key[~images.official_test])
    if len(both):
        shown = ", ".join(map(str, both[:SHOWN]))
        raise DataError(
            f"{len(both)} patients have images both in the publisher's test set and outside it, such as {shown}. "
            "Mend the patient keys or the list, or divide all patients anew (split=patient)."
        )


def _missing_classes(images: XrayImages, rows: dict[str, np.ndarray]) -> str:
    """Which class is missing in which split, with all counts; '' if none. Such a class has no AUROC."""
    missing = []
    for name, index in rows.items():
        counts = dict(zip(images.classes, images.target[index].sum(0).tolist(), strict=True))
        lacking = [label for label, count in counts.items() if count == 0]
        if lacking:
            held = ", ".join(f"{label} {count}" for label, count in counts.items())
            missing.append(f"{', '.join(lacking)} in {name} (images: {held})")
    return "; ".join(missing)


def _report(images: XrayImages, patients: Patients, rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """Counts that the notes of the stage hold."""
    splits = {}
    for name, index in rows.items():
        sizes = np.bincount(patients.row_patient[index])
        splits[name] = {
            "images": len(index),
            "patients": int((sizes > 0).sum()),
            "patients_with_several_images": int((sizes > 1).sum()),
            "largest_patient": int(sizes.max()),
            "classes": dict(zip(images.classes, images.target[index].sum(0).tolist(), strict=True)),
        }
    used = np.concatenate(list(rows.values()))
    groups = identical_groups(images.rows(used))
    across = [group for group in groups if len(np.unique(patients.row_patient[used[group]])) > 1]
    return {
        "splits": splits,
        "identical_groups": len(groups),
        "identical_groups_of_several_patients": len(across),
    }
