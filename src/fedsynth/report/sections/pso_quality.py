"""What synthetic images look like as a set: Fréchet distance, image retrieval score, precision and coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsynth.report.paper import PaperValue
from fedsynth.report.pso_systems import (
    CLASSIFIER,
    PAPER_HEADING,
    ImageSystem,
    image_systems,
    printed_rows,
)
from fedsynth.report.pso_tables import digits, first_stage, kept, percent, spread
from fedsynth.report.records import ReportRecord
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.pso_utility import gap_record
from fedsynth.report.tables import DASH, cell, table

KIND = "audit_images"
DISTANCE = "frechet/train"
SATURATED = "irs/saturated_share"
#: Heading, metric, decimals.
Columns = Sequence[tuple[str, str, int]]
MAIN: Columns = (
    ("Fréchet to training", DISTANCE, 2),
    ("Fréchet to test", "frechet/test", 2),
    ("IRS α", "irs/alpha", 3),
    ("IRS ∞", "irs/inf", 3),
    ("IRS ∞,a", "irs/inf_a", 3),
)
BESIDE: Columns = (
    ("Fréchet, equal number", "frechet/train_equal", 2),
    ("the same of real images", "frechet/floor", 2),
    ("IRS ∞ of test images", "irs/inf_test", 3),
    ("precision", "prdc/precision", 3),
    ("recall", "prdc/recall", 3),
    ("density", "prdc/density", 3),
    ("coverage", "prdc/coverage", 3),
)
SIZES = "IRS: n of training images"
MARK = "▲"
MARKED = ("irs/inf", "irs/inf_a")
#: The paper's column → metric of its printed value, decimals.
PAPER_COLUMNS: Columns = (("FID", "frechet/unstated", 1), ("IRS ∞,a", "irs/inf_a", 2))


@dataclass(frozen=True)
class Row:
    """One released set in one feature space; ``suffix`` is what the audit adds to the names of metrics there."""

    system: ImageSystem
    suffix: str
    space: str


def image_quality_section(material: Material) -> Section | None:
    """Table 1 of the paper in every feature space: distance, retrieval, PRDC and the AUROC gap of each released set."""
    rows = [row for one in image_systems(material, KIND, "released") for row in _rows(material, one)]
    if not rows:
        return None
    printed = printed_rows(material, "Table 1")
    is_saturated = any(_is_saturated(material, row) for row in rows)
    text = [
        "Each synthetic set against real images in the features that the row names. A **Fréchet distance is no"
        " FID** unless"
        " the encoder is the Inception network of that name, and distances in two spaces cannot be compared. IRS"
        " α: share"
        " of training images that are the nearest one of some synthetic image. IRS ∞: the share that unlimited sampling"
        " would reach, estimated; IRS ∞,a: relative to equally many real test images. Above 1 means more evenly spread"
        " over the training images than real test images are, not better. IRS grows with the number of images n: compare"
        " sets of equal n only. IRS ∞,a compares equally many synthetic and test images by itself.",
        f"{MARK}: the estimate sits at its ceiling (nearly all retrieved images are distinct), so IRS ∞ says “at least”"
        " and IRS ∞,a is capped at 1 / IRS ∞ of the test images."
        if is_saturated
        else "",
        material.caption("Synthetic sets, by feature space."),
        _table(material, rows, MAIN, printed, sizes=True),
        material.caption(
            "The same sets. Fréchet distances depend on the number of images, so the third column takes as many"
            " synthetic"
            " images as there are real validation images; their own distance is what real images of other people give."
            " Precision, recall, density and coverage against real test images, equally many of both."
        ),
        _table(material, rows, BESIDE, None),
        _paper_note(printed),
    ]
    return Section("Diversity and fidelity of synthetic images", "\n\n".join(part for part in text if part))


def _rows(material: Material, system: ImageSystem) -> list[Row]:
    """Every feature space of an audit: the chosen encoder's, whose metrics have no suffix, and further ones."""
    stage = first_stage(material, system.stage)
    held = (stage.notes if stage else {}).get("spaces") or {}
    encoder = next((name for name, space in held.items() if space.get("is_primary")), "encoder")
    found = (
        record.metric.removeprefix(DISTANCE)
        for record in material.records
        if record.stage == system.stage and record.arm == system.arm
        and (record.metric == DISTANCE or record.metric.startswith(f"{DISTANCE}/"))
    )  # fmt: skip
    return [Row(system, suffix, suffix.strip("/") or encoder) for suffix in dict.fromkeys(found)]


def _is_saturated(material: Material, row: Row) -> bool:
    record = material.get(row.system.stage, row.system.arm, SATURATED + row.suffix)
    return record is not None and bool(record.mean)


def _table(
    material: Material,
    rows: Sequence[Row],
    columns: Columns,
    printed: Mapping[tuple[str, str], PaperValue] | None,
    *,
    sizes: bool = False,
) -> str:
    """One line a set and space.

    Args:
        material: Holds the numbers.
        rows: Sets and spaces.
        columns: Metrics.
        printed: The paper's numbers, shown once a set, with the AUROC gap.
        sizes: Whether to say of how many images IRS is.
    """
    header = ["synthetic set", "features", *([SIZES] if sizes else []), *(title for title, _, _ in columns)]
    if printed is not None:
        header += ["AUROC gap", *(f"{PAPER_HEADING}: {title}" for title, _, _ in PAPER_COLUMNS)]
    lines, last = [], ""
    for row in rows:
        one, is_first = row.system, row.system.stage != last
        cells = [_cell(material, row, metric, places) for _, metric, places in columns]
        told = [_retrieval_sizes(material, row)] if sizes else []
        lines.append([cell(one.label) if is_first else "", cell(row.space), *told, *cells])
        if printed is not None:
            papers = [printed.get((one.paper_arm, metric)) for _, metric, _ in PAPER_COLUMNS]
            papers_told = [
                digits(value.mean, places) if value else DASH
                for value, (_, _, places) in zip(papers, PAPER_COLUMNS, strict=True)
            ]
            lines[-1] += (
                [_gap(_gap_of(material, one)), *papers_told] if is_first else [""] * (1 + len(papers_told))
            )
        last = one.stage
    header, lines = kept(lines, header)
    return table(header, lines, right=range(2, len(header)))


def _cell(material: Material, row: Row, metric: str, places: int) -> str:
    record = material.get(row.system.stage, row.system.arm, metric + row.suffix)
    is_marked = metric in MARKED and record is not None and _is_saturated(material, row)
    return spread(record, places) + (f" {MARK}" if is_marked else "")


def _retrieval_sizes(material: Material, row: Row) -> str:
    """``1,000 of 4,089``: synthetic images, and training images that they can retrieve; of the first run."""
    stage = first_stage(material, row.system.stage)
    held = ((stage.notes if stage else {}).get("spaces") or {}).get(row.space) or {}
    found = next((one for one in held.get("irs") or [] if one.get("set") == "released"), None)
    return f"{found['n']:,} of {found['N']:,}" if found else DASH


def _gap_of(material: Material, system: ImageSystem) -> ReportRecord | None:
    """The AUROC gap of the classifier that was trained on the audited set and tested on its own site."""
    classifiers = image_systems(material, CLASSIFIER, "train")
    found = (
        gap_record(material, one) for one in classifiers if one.images == system.images and one.is_own_site
    )
    return next((record for record in found if record is not None), None)


def _gap(record: ReportRecord | None) -> str:
    return percent(record.mean, record.std, sign=True) if record else DASH


def _paper_note(printed: Mapping[tuple[str, str], PaperValue]) -> str:
    if not any(metric == "frechet/unstated" for _, metric in printed):
        return ""
    return (
        "The paper's FID is on Inception features; it does not say whether against training or test images. Its IRS"
        " ∞,a of 1.58 for DiADM + SwAV is 1 / .633, which a saturated estimate would give."
    )
