"""Singling out and re-identification: what was tested on each released set, against which chance, and what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsynth.report.gallery import ReportFigure
from fedsynth.report.pso_figures import IsolationLines, isolation_curves
from fedsynth.report.pso_isolation import read_isolation
from fedsynth.report.pso_systems import ImageSystem, image_systems
from fedsynth.report.pso_tables import first_stage, kept
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.pso_quality import KIND
from fedsynth.report.stored import NotRunError
from fedsynth.report.tables import DASH, MINUS, cell, table

#: What the tests ask, as told to readers.
TESTS = {
    "T1": "is the nearest training image of a released one its own source?",
    "T2": "does a ball around a released image hold exactly one training image?",
    "T3": "how much more often than balls hold exactly one of as many records that nothing was made from?",
    "T4": "controls: training images released as they are (must be found); real images of other people, images of an"
    " independent generator and points of a differentially private release (must not)",
    "T5": "is the most similar training image, of any patient, more similar than to real images of other people?",
    "T6": "do the answers change with candidates, guidance and filter? The columns of the table, where sets are several",
}
CONTROLS = "T4"
#: Part of the quantity of the row that holds the bound.
BOUND = "by the bound of"
ABOVE = "▲"
MOST_PANELS = 4
Notes = Mapping[str, Any]


def singling_out_section(material: Material) -> Section | None:
    """The tests of every released set, the controls, and isolation by radius as curves; of the first run."""
    tests = {one: rows for one in image_systems(material, KIND, "released") if (rows := _rows(material, one))}
    if not tests:
        return None
    order = _shown_first(list(tests))
    first = order[0]
    text = [
        "An adversary who sees released images names a predicate; it **singles out** if exactly one training record"
        " satisfies it although its weight (the share of new records that do) is tiny. A predicate chosen without the"
        " release isolates with probability n·w·(1−w)ⁿ⁻¹, at most 37 %. Here predicates are balls around released images"
        " in a feature space.",
        "**What the tests cannot show.** They try one family of predicates in a few spaces, and one re-identification"
        f" network. A row marked {ABOVE}, whose interval lies above chance, is evidence of singling out. A row"
        " without says"
        " that *this* attack failed, not that no other can succeed: no formal guarantee covers these images. Intervals"
        " take released images as independent, and of many rows some exceed chance by accident.",
        "\n".join(f"- **{name}**: {meaning}" for name, meaning in TESTS.items()),
        _uses(material, order),
        material.caption(f"Released sets: value and 95 % interval.{material.first_run}"),
        _several(tests) if len(tests) > 1 else _single(tests[first]),
        material.caption(f"Controls (T4), beside {first.label}."),
        _single(_rows(material, first, is_control=True), is_noted=False),
        _bound_note(material, first),
    ]
    figure = _figure(material, order)
    figures = (figure,) if figure else ()
    title = "Singling out and re-identification: what was tested"
    return Section(title, "\n\n".join(part for part in text if part), figures)


def _uses(material: Material, systems: Sequence[ImageSystem]) -> str:
    """What the generator and the selection of each set used of each space; empty where no audit says so."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in systems:
        stage = first_stage(material, one.stage)
        for space, use in ((stage.notes if stage else {}).get("uses") or {}).items():
            found.setdefault((str(space), str(use)), []).append(one.label)
    if not found:
        return ""
    lines = [
        f"- **{cell(space)}**: {cell(use)}"
        + ("" if len(labels) == len(systems) else f" ({cell(', '.join(labels))})")
        for (space, use), labels in sorted(found.items(), key=lambda item: item[0][0])
    ]
    return "What a space had to do with the images tested in it:\n\n" + "\n".join(lines)


def _bound_note(material: Material, system: ImageSystem) -> str:
    """What the bound of differential privacy says of the private control; empty without such a control."""
    notes = [
        str(row.get("note"))
        for row in _rows(material, system, is_control=True)
        if BOUND in str(row.get("quantity"))
    ]
    return f"The bound of differential privacy: {cell(notes[0])}. A bound of 1 says nothing." if notes else ""


def _shown_first(tests: list[ImageSystem]) -> list[ImageSystem]:
    """For what has room for few: filtered sets, then those of the paper's later methods."""
    backwards = tests[::-1]
    return [one for flag in (True, False) for one in backwards if one.origin.is_filtered == flag]


def _rows(material: Material, system: ImageSystem, *, is_control: bool = False) -> list[Notes]:
    stage = first_stage(material, system.stage)
    rows = (stage.notes if stage else {}).get("table") or []
    return [row for row in rows if _is_control(row) == is_control]


def _is_control(row: Notes) -> bool:
    """Rows about other images than released ones: all of T4, and T3 of the same controls."""
    return row.get("test") == CONTROLS or (
        row.get("test") == "T3" and "released images" not in str(row.get("quantity"))
    )


def _several(tests: Mapping[ImageSystem, Sequence[Notes]]) -> str:
    """Tests down, released sets across; chance is that of the first set, which others of its size share."""
    values: dict[tuple[str, str, str], dict[str, str]] = {}
    chance: dict[tuple[str, str, str], str] = {}
    for one, rows in tests.items():
        for row in rows:
            key = (cell(row.get("test")), cell(row.get("space")), cell(row.get("quantity")))
            values.setdefault(key, {})[one.stage] = f"{_told(row)} {_bounds(row)}".removesuffix(DASH).strip()
            chance.setdefault(key, _value(row.get("chance_or_control")))
    header = ["test", "space", "quantity", "chance or control", *(cell(one.label) for one in tests)]
    lines = [
        [*key, chance[key], *(held.get(one.stage, DASH) for one in tests)] for key, held in values.items()
    ]
    return table(header, lines, right=range(3, len(header)))


def _single(rows: Sequence[Notes], *, is_noted: bool = True) -> str:
    if not rows:
        return ""
    header = ["test", "space", "quantity", "value", "95 % CI", "chance or control", "note"]
    lines = [
        [
            cell(row.get("test")), cell(row.get("space")), cell(row.get("quantity")), _told(row), _bounds(row),
            _value(row.get("chance_or_control")), cell(row.get("note")) if is_noted else "",
        ]
        for row in rows
    ]  # fmt: skip
    header, lines = kept(lines, header)
    return table(
        header,
        lines,
        right=[i for i, title in enumerate(header) if title in ("value", "95 % CI", "chance or control")],
    )


def _told(row: Notes) -> str:
    low, chance = row.get("low"), row.get("chance_or_control")
    # T3's interval is that of a difference: it lies above chance when it lies above 0.
    bar = 0.0 if row.get("test") == "T3" else chance
    is_above = low is not None and bar is not None and low > bar
    return f"**{_value(row.get('value'))}**" + (f" {ABOVE}" if is_above else "")


def _value(value: Any) -> str:
    """Four digits; a chance of 1/n keeps two significant ones."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, str):
        return cell(value)
    text = f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
    return text.replace("-", MINUS, 1) if value < 0 else text


def _bounds(row: Notes) -> str:
    low, high = row.get("low"), row.get("high")
    return DASH if low is None or high is None else f"[{_value(low)}, {_value(high)}]"


def _figure(material: Material, systems: Sequence[ImageSystem]) -> ReportFigure | None:
    panels: dict[str, IsolationLines] = {}
    for one in systems:
        stage = first_stage(material, one.stage)
        try:
            found = read_isolation(stage) if stage else {}
        except NotRunError:
            continue
        panels |= {f"{one.label}\n{space}": lines for space, lines in found.items()}
    if not panels:
        return None
    shown = dict(list(panels.items())[:MOST_PANELS])
    left = (
        f" {len(panels) - len(shown)} more curves are in the artifacts." if len(panels) > len(shown) else ""
    )
    return ReportFigure(
        "pso_isolation",
        "Singling out by radius",
        "Share of balls around released images that hold exactly one training image. Dotted: what predicates of the same"
        " weights isolate by chance; dashed: the most that the uncertainty of the weights allows. Green: balls"
        " around real"
        " images of other people, which must look like chance. Vermilion: balls around the training images"
        " themselves, what"
        " a leak looks like. A lower limit above the dashed line is evidence of singling"
        f" out.{left}{material.first_run}",
        isolation_curves(shown, simulated=material.simulated),
    )
