"""Isolation curves that an audit left, read for the figure."""

from __future__ import annotations

from fedsynth.errors import ArtifactError
from fedsynth.report.pso_figures import IsolationLines
from fedsynth.report.runs import StageResult
from fedsynth.report.stored import Array, NotRunError

FILE = "isolation.safetensors"
#: Field of the figure → (set that was tried as a release, quantity). The last two are controls.
FIELDS = {
    "radius": ("released", "radius"),
    "isolating": ("released", "isolating"),
    "low": ("released", "isolating_low"),
    "high": ("released", "isolating_high"),
    "baseline": ("released", "baseline"),
    "ceiling": ("released", "baseline_ceiling"),
    "negative": ("negative", "isolating"),
    "positive": ("positive", "isolating"),
}


def read_isolation(stage: StageResult) -> dict[str, IsolationLines]:
    """Space → curves of one audit.

    Raises:
        NotRunError: The audit left no curves.
        ArtifactError: The file is damaged or of another form.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = stage.path / FILE
    if not path.is_file():
        raise NotRunError(f"stage {stage.name} left no {FILE}")
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise ArtifactError(f"{path} is damaged ({error}). Delete its folder and run again.") from error
    spaces = [
        name.removesuffix("/released.radius") for name in sorted(arrays) if name.endswith("/released.radius")
    ]
    if not spaces:
        raise ArtifactError(f"{path} holds no curve; it holds {', '.join(sorted(arrays)[:6])}. Run again.")
    return {space: _lines(arrays, space, str(path)) for space in spaces}


def _lines(arrays: dict[str, Array], space: str, path: str) -> IsolationLines:
    names = {field: f"{space}/{tried}.{quantity}" for field, (tried, quantity) in FIELDS.items()}
    if lacking := sorted(set(names.values()) - set(arrays)):
        raise ArtifactError(f"{path} lacks {', '.join(lacking)}. Run again.")
    return IsolationLines(**{field: arrays[name] for field, name in names.items()})
