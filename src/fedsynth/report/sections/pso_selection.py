"""Selection policies beside each other: what the identity filter refused, class by class, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsynth.report.gallery import ReportFigure
from fedsynth.report.pso_emulation import RELEASED_CODE, emulated_title
from fedsynth.report.pso_names import FILTERED, image_rank, image_title
from fedsynth.report.pso_pictures import verdict_grid
from fedsynth.report.pso_systems import CLASSIFIER, image_systems, stage_config
from fedsynth.report.pso_tables import count, digits, every_note, first_stage, kept, percent, share
from fedsynth.report.pso_verdicts import read_verdicts
from fedsynth.report.section import Material, Section
from fedsynth.report.sections.pso_utility import AUROC
from fedsynth.report.stored import NotRunError
from fedsynth.report.tables import DASH, cell, table

KIND = "select_images"
COUNTS = (("kept", "kept"), ("dropped", "dropped"), ("refilled", "refilled"), ("rounds", "rounds"))
EMULATION = (
    "**Released-code filter**: that code only adds 1 to the loss of a flagged candidate, so that one may be chosen all"
    " the same. What is said here of refusing does not hold for such a set: it may hold flagged candidates."
)
#: Sets of held-out pairs: the one that chose the threshold, and one that chose nothing.
CHOSE, TESTED = "validation", "test"


@dataclass(frozen=True)
class Selection:
    """One stage that selected images: its arm, what to call it, and whether an identity filter took part."""

    stage: str
    arm: str
    label: str
    is_filtered: bool
    is_emulated: bool = False


def selection_section(material: Material) -> Section | None:
    """Tables of policies and of classes, and the grid of verdicts on candidates."""
    found = selections(material)
    if not found:
        return None
    text = [
        "Of every real training image several candidates are sampled. The **identity filter** refuses a"
        " candidate that the"
        " re-identification network takes for the same patient; among the rest, the one whose predicted findings are"
        " nearest those of the real image is released. If all are refused, more are sampled with less guidance, down to"
        " a floor; what still fails is dropped, and may be refilled by unrefused candidates of other images of"
        " its class."
        " A candidate that passes has not been re-identified **by this network**: that is no proof of privacy.",
        EMULATION if any(one.is_emulated for one in found) else "",
        *(_unrecognizing(material, one) for one in found),
        material.caption(f"Policies.{_reading(material)}"),
        _policies(material, found),
        _error_rates(material, found),
        _classes(material, found),
    ]
    grid = _grid(material, found)
    figures = (grid,) if grid else ()
    return Section("Identity filter and selection", "\n\n".join(part for part in text if part), figures)


def selections(material: Material) -> list[Selection]:
    """Every stage that selected images, in the order of its arms."""
    found = []
    for name in material.names(KIND):
        config = stage_config(material.runs[0].config, name)
        arms = [record.arm for record in material.records if record.stage == name]
        arm = str(config.get("arm") or (arms[0] if arms else name))
        kind = config.get("filter")
        is_filtered, is_emulated = kind != "none", kind == RELEASED_CODE
        label, word = image_title(arm) or arm, FILTERED if is_filtered else f"un{FILTERED}"
        told = label if FILTERED in label else f"{label}, {word}"
        found.append(
            Selection(name, arm, emulated_title(label) if is_emulated else told, is_filtered, is_emulated)
        )
    return sorted(found, key=lambda one: (*image_rank(one.arm), one.stage))


def _unrecognizing(material: Material, one: Selection) -> str:
    """What to know of a filter that filters next to nothing, of the first run in which it does not."""
    faults = every_note(material, one.stage, "filter_fault")
    if not faults:
        return ""
    return (
        f"**The filter recognizes almost nobody ({cell(one.label)})**: {cell(faults[0])}. Read this set as one without"
        " a filter."
    )


def shown_first(found: Sequence[Selection]) -> list[Selection]:
    """For figures that have room for few: filtered sets, then those of the paper's later methods."""
    backwards = found[::-1]
    return [one for flag in (True, False) for one in backwards if one.is_filtered == flag]


def _reading(material: Material) -> str:
    return (
        " Error rates of the threshold: on the held-out real pairs that chose it, all classes together; by class, and"
        " on pairs of patients who chose nothing, in the next table. Guidance weights: one a round, those that were"
        " allowed but not needed in parentheses; how many rounds there are depends on the weight of the first."
        " AUROC: of a classifier trained on the released"
        " set, on real"
        f" test images, percent.{material.first_run}"
    )


def _policies(material: Material, found: list[Selection]) -> str:
    classifiers = image_systems(material, CLASSIFIER, "train")
    header = [
        "policy",
        "threshold",
        "same patients missed",
        "others flagged",
        *(title for title, _ in COUNTS),
        "guidance weights",
        "AUROC",
    ]
    rows = []
    for one in found:
        stage = first_stage(material, one.stage)
        notes = stage.notes if stage else {}
        threshold, missed, flagged = thresholds(notes)
        score = next(
            (
                record
                for system in classifiers
                if system.images == one.stage and system.is_own_site
                and (record := material.get(system.stage, system.arm, AUROC)) is not None
            ),
            None,
        )  # fmt: skip
        rows.append([
            cell(one.label), threshold, missed, flagged,
            *(count(material.get(one.stage, one.arm, metric)) for _, metric in COUNTS),
            guidance_weights(notes),
            f"**{percent(score.mean, score.std)}**" if score else DASH,
        ])  # fmt: skip
    header, rows = kept(rows, header)
    return table(header, rows, right=range(1, len(header)))


def guidance_weights(notes: Mapping[str, Any]) -> str:
    """``1.2, 1, (0.7)``: of the rounds that were played, and in parentheses of those that were not needed."""
    played, allowed = notes.get("weights") or [], notes.get("weights_allowed") or []
    told = [f"{weight:g}" for weight in played] + [f"({weight:g})" for weight in allowed[len(played) :]]
    return ", ".join(told) or DASH


def thresholds(notes: Mapping[str, Any]) -> tuple[str, str, str]:
    """(threshold, false negatives, false positives) in words: one for all classes, or one for each."""
    items = [item for item in notes.get("thresholds") or [] if isinstance(item, Mapping)]

    def told(key: str, form: Callable[[float], str]) -> str:
        shown = [(_compared(item), form(item[key])) for item in items if item.get(key) is not None]
        if len(shown) == 1:
            return shown[0][1]
        return ", ".join(f"{name} {text}" for name, text in shown) or DASH

    return told("threshold", digits), told("fnr", share), told("fpr", share)


def _compared(item: Mapping[str, Any]) -> str:
    """``normal``, or with what is compared where that is not the own source."""
    other = str(item.get("compared_with") or "")
    return cell(other if "any" in other else item.get("class"))


def _error_rates(material: Material, found: list[Selection]) -> str:
    """Per class of filtered sets, of the first run: what the threshold does to pairs that chose it, and to others."""
    rows = []
    for one in (one for one in found if one.is_filtered):
        stage = first_stage(material, one.stage)
        stored = (stage.notes if stage else {}).get("error_rates") or []
        by_class: dict[str, dict[str, Mapping[str, Any]]] = {}
        for item in stored:
            by_class.setdefault(str(item["class"]), {})[str(item["pairs"])] = item
        for index, (name, sets) in enumerate(by_class.items()):
            chose, tested = sets.get(CHOSE, {}), sets.get(TESTED, {})
            rows.append([
                cell(one.label) if index == 0 else "", cell(name), digits(chose.get("threshold")),
                share(chose.get("fpr")), share(tested.get("fpr")), share(chose.get("fnr")), share(tested.get("fnr")),
                _integer(tested.get("two_persons")), _integer(tested.get("one_person")),
            ])  # fmt: skip
    if not rows:
        return ""
    header = [
        "policy", "class", "threshold", "others flagged, pairs that chose", "others flagged, test pairs",
        "same patients missed, pairs that chose", "same patients missed, test pairs",
        "test pairs of two patients", "test pairs of one",
    ]  # fmt: skip
    caption = material.caption(
        "Error rates of the identity filter's threshold on real pairs, by class of the first image. A rate stated for"
        " all classes together is a mean: it may hold in none of them. Rates on the pairs that chose the threshold are"
        f" too good; few pairs make rates uncertain.{material.first_run}"
    )
    header, rows = kept(rows, header)
    return f"{caption}\n\n{table(header, rows, right=range(2, len(header)))}"


def _classes(material: Material, found: list[Selection]) -> str:
    """Per class of filtered sets, of the first run: sources, shares refused, accepted, dropped, refilled, released."""
    rows, most = [], 0
    for one in (one for one in found if one.is_filtered):
        stage = first_stage(material, one.stage)
        classes = (stage.notes if stage else {}).get("per_class") or {}
        for index, (name, item) in enumerate(classes.items()):
            accepted = [int(value) for value in item.get("accepted_by_round") or []]
            most = max(most, len(accepted))
            rows.append([
                cell(one.label) if index == 0 else "", cell(name), _integer(item.get("sources")),
                share(item.get("flagged_share")), share(item.get("all_flagged_share")),
                ", ".join(f"{value:,}" for value in accepted) or DASH,
                _integer(item.get("dropped")), _integer(item.get("refilled")),
                _integer(item.get("emitted")), _integer(item.get("missing")),
            ])  # fmt: skip
    if not rows:
        return ""
    header = [
        "policy", "class", "sources", "candidates flagged", "sources with all flagged at first",
        "accepted by round", "dropped", "refilled", "released", "could not be had",
    ]  # fmt: skip
    header, rows = kept(rows, header)
    caption = material.caption(
        "By class: a filter that refuses one class more often than another shifts the classes of what is released."
        + material.first_run
    )
    return f"{caption}\n\n{table(header, rows, right=range(2, len(header)))}"


def _integer(value: Any) -> str:
    return DASH if value is None else f"{int(value):,}"


def _grid(material: Material, found: list[Selection]) -> ReportFigure | None:
    """The verdicts of the first policy that filtered and left some, of the first run."""
    for one in shown_first(found):
        stage = first_stage(material, one.stage)
        try:
            rows = read_verdicts(stage) if stage else []
        except NotRunError:
            continue
        if any(row.probability is not None for row in rows):
            return ReportFigure(
                "pso_verdicts",
                "Verdict on every candidate",
                f"{one.label}: real training images (left) and candidates made of them. Red: refused, the network"
                " takes it"
                " for the same patient; gray: allowed; green: chosen, the allowed one with the most similar"
                " findings. P: probability that source and candidate show one person. A row without green: no candidate"
                " of the first round was taken. **Shows real training images: pass this report on only to"
                f" whom you may pass the data.**{material.first_run}",
                verdict_grid(rows, simulated=material.simulated),
            )
    return None
