"""The candidates that a selection left for the report, read as rows of the verdict grid."""

from __future__ import annotations

from collections import Counter

from fedsynth.report.pso_pictures import Verdicts
from fedsynth.report.runs import StageResult
from fedsynth.report.stored import Array, read_arrays

FILE = "private/verdicts.safetensors"
#: Source images shown of each class: more make a grid that cannot be read at the report's width.
ROWS_PER_CLASS = 3
MOST_ROWS = 12
COLUMNS = 8


def read_verdicts(stage: StageResult) -> list[Verdicts]:
    """Source images, candidates and verdicts of a stage ``select_images``; at most three a class.

    Raises:
        NotRunError: The stage left none.
        ArtifactError: The file is damaged or of another form.
    """
    source, label, images, flagged, chosen, kept = read_arrays(
        stage, FILE, "source_image", "label", "image", "flagged", "chosen", "kept"
    )
    released = (
        chosen.astype(bool) & kept.astype(bool)[:, None]
    )  # a choice may be left out to keep the class mix
    is_scored = bool(stage.notes.get("thresholds"))  # without an identity filter there is no P
    probability = read_arrays(stage, FILE, "probability")[0] if is_scored else None
    classes = [str(name) for name in stage.notes.get("classes") or []]
    names = [_class_name(row, classes) for row in label]
    seen: Counter[str] = Counter()
    rows: list[Verdicts] = []
    for index, name in enumerate(names):
        seen[name] += 1
        if seen[name] > ROWS_PER_CLASS or len(rows) == MOST_ROWS:
            continue
        rows.append(
            Verdicts(
                label=name,
                source=_gray(source[index]),
                candidates=_gray(images[index])[:COLUMNS],
                probability=None if probability is None else probability[index][:COLUMNS],
                flagged=flagged[index][:COLUMNS].astype(bool),
                chosen=released[index][:COLUMNS],
            )
        )
    return sorted(rows, key=lambda row: names.index(row.label))


def _class_name(label: Array, classes: list[str]) -> str:
    """Of one class number, or of a row of 0 and 1 the names that hold."""
    if label.ndim == 0:
        return classes[int(label)] if int(label) < len(classes) else f"class {int(label)}"
    return ",\n".join(name for name, held in zip(classes, label, strict=True) if held) or "none"


def _gray(image: Array) -> Array:
    """Without the channel: [1, h, w] → [h, w], [b, 1, h, w] → [b, h, w]."""
    return image.mean(axis=-3) if image.ndim > 2 and image.shape[-3] in (1, 3) else image
