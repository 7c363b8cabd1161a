"""Classifiers trained on synthetic images, tested on real ones, beside the paper's Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedsynth.report.gallery import ReportFigure
from fedsynth.report.paper import PaperValue
from fedsynth.report.pso_systems import (
    CLASSIFIER,
    PAPER_HEADING,
    ImageSystem,
    image_systems,
    inputs_of,
    printed_rows,
    site_name,
    stage_config,
)
from fedsynth.report.pso_tables import digits, first_stage, kept, outside, percent, percent_bounds
from fedsynth.report.records import ReportRecord
from fedsynth.report.result_figures import forest
from fedsynth.report.section import OUTSIDE_NOTE, Material, Section
from fedsynth.report.sections.encoders import estimate
from fedsynth.report.tables import DASH, cell, table

AUROC, GAP = "test/auroc", "gap"
PLACE, SHARED_PLACE = "Table 1", "Table 2"


def image_utility_section(material: Material) -> Section | None:
    """Macro AUROC on real test images of every training set, and what is lost against real images."""
    systems = [one for one in image_systems(material, CLASSIFIER, "train") if _auroc(material, one)]
    own = [one for one in systems if one.is_own_site] or systems
    if not own:
        return None
    has_sites = len({one.tested for one in own}) > 1
    if has_sites:
        sites = [f", {site_name(material, one.tested)}" for one in own]
        own = [
            replace(one, label=one.label.removesuffix(site) + site)
            for one, site in zip(own, sites, strict=True)
        ]
    labels = [one.label for one in own]
    own = [
        replace(one, label=f"{one.label} (`{one.stage}`)") if labels.count(one.label) > 1 else one
        for one in own
    ]
    printed = (
        {} if has_sites else paper_values(material)
    )  # the paper's Table 2 stands beside the matrix of sites
    of_site = (
        " of its own site; sets of several sites and tests on other sites stand in the matrix of sites"
        if has_sites
        else ""
    )
    text = [
        f"A classifier is trained on each set and tested on the **same real test images**{of_site}. AUROC: mean over"
        " classes, one against the rest, in percent. Gap: AUROC of real training images minus that of the row, paired"
        " by test image, its interval by resampling patients and classifier seeds; positive: something was lost. The"
        " generator is held fixed.",
        _sizes_note(material, own),
        _labels_note(own),
        _standing(material, printed),
        material.caption(f"Training sets of {len(own)} systems. {_spread(material)}"),
        _table(material, own, printed),
    ]
    rows = {one.label: estimate(material, one.row, AUROC) for one in own}
    reference = next((rows[one.label].mean for one in own if _is_real(one)), None)
    figure = ReportFigure(
        "pso_utility",
        "AUROC by training set",
        "Macro AUROC on real test images, with 95 % intervals"
        + ("." if has_sites else "; dotted: trained on real images."),
        forest(
            rows,
            title="Trained on each set, tested on real images",
            x_label="macro AUROC",
            reference=None if has_sites else reference,
            simulated=material.simulated,
        ),
    )
    return Section("Utility of synthetic images", "\n\n".join(part for part in text if part), (figure,))


def paper_values(material: Material) -> dict[tuple[str, str], PaperValue]:
    """Table 1 and, for filtered and shared sets, the cells of Table 2 that are about the same site."""
    return {**printed_rows(material, SHARED_PLACE), **printed_rows(material, PLACE)}


def gap_record(
    material: Material, system: ImageSystem, metric: str = GAP, *, to_sources: bool = False
) -> ReportRecord | None:
    """What a stage that contrasts the system's classifier with that of real images states of it.

    Args:
        material: Of the report.
        system: A classifier's training set.
        metric: One of the stage's.
        to_sources: The contrast with the real images of the sources alone, not with all of them.
    """
    config = material.runs[0].config
    for stage in material.names("auroc_gap"):
        inputs = inputs_of(config, stage)
        trained_on = inputs_of(config, inputs.get("real", "")).get("train", "")
        if (stage_config(config, trained_on).get("stage") == "source_images") != to_sources:
            continue
        if system.stage in inputs.values():
            record = material.get(stage, system.arm, metric)
            if record is not None and record.mean is not None:
                return record
    return None


def _auroc(material: Material, system: ImageSystem) -> ReportRecord | None:
    record = material.get(system.stage, system.arm, AUROC)
    return record if record is not None and record.mean is not None else None


def _is_real(system: ImageSystem) -> bool:
    return system.images in system.origin.sites


def _spread(material: Material) -> str:
    unit = f"{len(material.runs)} runs" if len(material.runs) > 1 else "classifier seeds"
    return f"± SD and 95 % CI (Student t) over {unit}, where there are several; else the stage's own by patients."


def _table(
    material: Material, systems: Sequence[ImageSystem], printed: Mapping[tuple[str, str], PaperValue]
) -> str:
    header = [
        "trained on",
        "images",
        "AUROC",
        "95 % CI",
        "gap",
        "gap, 95 % CI",
        "Holm p",
        "gap at equal size",
        "equal size, 95 % CI",
        f"{PAPER_HEADING}: AUROC",
        f"{PAPER_HEADING}: gap",
    ]
    rows = []
    for one in systems:
        record, gap, holm = (
            _auroc(material, one),
            gap_record(material, one),
            gap_record(material, one, "p_holm"),
        )
        equal = gap_record(material, one, to_sources=True)
        paper, paper_gap = (printed.get((one.paper_arm, name)) for name in (AUROC, GAP))
        rows.append([
            cell(one.label), _size_told(material, one),
            f"**{percent(record.mean, record.std)}**" if record else DASH,
            percent_bounds(record),
            percent(gap.mean, gap.std, sign=True) if gap else DASH,
            percent_bounds(gap, sign=True), digits(holm.mean) if holm else DASH,
            percent(equal.mean, equal.std, sign=True) if equal else DASH, percent_bounds(equal, sign=True),
            percent(paper.mean) + outside(record) if paper else DASH,
            percent(paper_gap.mean, sign=True) if paper_gap else DASH,
        ])  # fmt: skip
    header, rows = kept(rows, header)
    return table(header, rows, right=range(1, len(header)))


def _size(material: Material, system: ImageSystem) -> int | None:
    """Images the classifier was trained on, in the first run."""
    stage = first_stage(material, system.stage)
    found = (stage.notes if stage else {}).get("num_training")
    return int(found) if found is not None else None


def _size_told(material: Material, system: ImageSystem) -> str:
    size = _size(material, system)
    return DASH if size is None else f"{size:,}"


def _sizes_note(material: Material, systems: Sequence[ImageSystem]) -> str:
    """Says that a gap is also one of numbers, where sets of one site are smaller or larger than the real one."""
    real = {one.tested: size for one in systems if _is_real(one) and (size := _size(material, one))}
    others = {
        size
        for one in systems
        if one.tested in real and (size := _size(material, one)) and size != real[one.tested]
    }
    if not others:
        return ""
    told = " and ".join(f"{size:,}" for size in dict.fromkeys(real.values()))
    spread = f"{min(others):,}" if len(others) == 1 else f"{min(others):,} to {max(others):,}"
    return (
        f"**Sets differ in size**: {told} real training images against {spread} in other sets. A gap then holds what"
        " the number of images changes as well as what synthetic ones do."
    )


def _labels_note(systems: Sequence[ImageSystem]) -> str:
    """Says from what classifiers learned where it is not the class of the source."""
    if not any(one.origin.has_soft_labels for one in systems):
        return ""
    return (
        "**Soft labels** are ours, not the paper's: beside each image goes what the real classifiers of its site say of"
        " it, averaged over their seeds, and classifiers learn from these probabilities instead of the class of the"
        " source. Their gap also holds what a teacher of several classifiers is worth, and all have the same one."
        " What those know of their training images leaves with the labels; audits, which look at images one by one, see"
        " neither that nor what several images of one person tell together."
    )


def _standing(material: Material, printed: Mapping[tuple[str, str], PaperValue]) -> str:
    """Whether the paper's numbers may be compared with these, and what is odd about them; empty where none are shown."""
    if not printed:
        return ""
    text = f"Columns *{PAPER_HEADING}*: as printed for ChestX-ray14 at 512 pixels, with DenseNet-121. "
    if material.simulated:
        text += "**Not comparable**: this run stands on simulated images, and a simulated run reproduces nothing. "
    elif not any((stage, arm, AUROC) in material.published for stage, arm in _names(material)):
        text += "**Not comparable**: other images, size or networks (listed under *How to read it*). "
    else:
        text += f"{OUTSIDE_NOTE}. "
    return text + (
        "The paper prints a gap of 4.49 for EDM-2, but its own numbers give 84.99 − 80.44 = 4.55. “Within"
        " one point” (0.95) holds there only for the set **without** the identity filter; the filtered one loses 1.76"
        " points on the same test images, against real training images of another run (85.41, not 84.99)."
    )


def _names(material: Material) -> list[tuple[str, str]]:
    return [(one.stage, one.arm) for one in image_systems(material, CLASSIFIER, "train")]
