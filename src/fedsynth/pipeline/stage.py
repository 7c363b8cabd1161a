"""What a stage is: its settings, its side of the privacy boundary, its inputs, the function that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fedsynth.pipeline.artifacts import Artifact


#: Folder of an artifact, and name of an entry of its notes, that no server is shown.
PRIVATE = "private"


class Side(StrEnum):
    """Who runs a stage. An auditor may read everything; nothing it yields goes back to a server."""

    CLIENT = "client"
    SERVER = "server"
    AUDITOR = "auditor"


class Sensitivity(StrEnum):
    """What an artifact depends on.

    PRIVATE: on records, without protection. RELEASED: left the clients, by a mechanism in the ledger or
    declared as uncovered. PUBLIC: on public data only.
    """

    PRIVATE = "private"
    RELEASED = "released"
    PUBLIC = "public"


@dataclass(frozen=True)
class Metric:
    """One measured number. ``seed`` names the repetition (a classifier seed, or the run's own seed)."""

    arm: str
    metric: str
    value: float
    seed: int
    ci_low: float | None = None
    ci_high: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What a stage yields besides the files it wrote: numbers, ledger entries and notes for the report.

    The entry ``private`` of the notes stays with clients and auditors, as do the numbers of a stage that has it.
    """

    metrics: list[Metric] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageContext:
    """Where and how a stage runs.

    Attributes:
        name: The stage's name in the run (two stages may be of one kind).
        key: The key of the artifact being made; checkpoints carry it.
        output: Folder whose files become the artifact. Starts empty.
        scratch: Folder that survives a kill: checkpoints live here until the artifact is committed.
        trainer: Arguments for ``lightning.Trainer``, hardware and schedule merged.
        sources: The data sources the stage declared.
        loggers: ``loggers(part)`` is a context manager that yields Lightning loggers and closes them;
            ``part`` tells apart the trainings of a stage that makes several.
        learning_rate: The stage's own, for messages; None if it has none.
    """

    name: str
    key: str
    output: Path
    scratch: Path
    trainer: Mapping[str, Any]
    sources: Mapping[str, Any]
    loggers: Callable[[str], AbstractContextManager[list[Any]]]
    learning_rate: float | None = None
    rank: int = 0
    world_size: int = 1

    def save(self, name: str, tensors: Mapping[str, Any], *, may_be_infinite: Collection[str] = ()) -> None:
        """Write tensors to a safetensors file of the artifact, from the first rank only.

        Args:
            name: File name.
            tensors: By name.
            may_be_infinite: Names of tensors that are not checked.

        Raises:
            ArtifactError: If a tensor holds NaN or an infinite value: a diverged result must not be committed.
        """
        if self.rank == 0:
            self.require_finite(
                name, {key: tensor for key, tensor in tensors.items() if key not in may_be_infinite}
            )
            from safetensors.torch import save_file

            # clone: safetensors refuses tensors that share memory or are not contiguous.
            owned = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
            save_file(owned, self.output / name)

    def save_private(
        self, name: str, tensors: Mapping[str, Any], *, may_be_infinite: Collection[str] = ()
    ) -> None:
        """The same for tensors that stay with clients and auditors whatever the mark of the artifact.

        They lie below ``private/``; a server is handed the artifact without them. ``Artifact.load(name)`` gives them
        together with the tensors of the public file of that name, so names of tensors must differ. Only for a stage
        with ``keeps_private``.

        Raises:
            ArtifactError: As ``save``.
        """
        if self.rank == 0:
            (self.output / PRIVATE).mkdir(exist_ok=True)
        self.save(f"{PRIVATE}/{name}", tensors, may_be_infinite=may_be_infinite)

    def require_finite(self, name: str, tensors: Mapping[str, Any]) -> None:
        """Refuse NaN and infinite values.

        Args:
            name: What to call the tensors, e.g. the file they are for.
            tensors: By name; integers pass.

        Raises:
            ArtifactError: If there are any; the message counts them and names the tensors.
        """
        bad = {
            key: int((~tensor.isfinite()).sum())
            for key, tensor in tensors.items()
            if tensor.is_floating_point() and not bool(tensor.isfinite().all())
        }
        if not bad:
            return
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        key = f"stages.{self.name}.learning_rate"
        remedy = (
            "look for a diverged input or an extreme setting"
            if self.learning_rate is None
            else f"lower its learning_rate ({key}={self.learning_rate:g}) or look for an extreme setting"
        )
        raise ArtifactError(
            f"stages.{self.name} diverged: {name} holds {sum(bad.values())} non-finite values in "
            f"{', '.join(list(bad)[:3])}{more}; {remedy}. Nothing of this stage was committed."
        )


RunFunction = Callable[[Any, Mapping[str, "Artifact"], StageContext], Outcome]


def inherited(settings: Any, inputs: Mapping[str, Sensitivity]) -> Sensitivity:
    """The strictest mark among the inputs: post-processing neither adds to nor removes from protection."""
    for mark in (Sensitivity.PRIVATE, Sensitivity.RELEASED):
        if mark in inputs.values():
            return mark
    return Sensitivity.PUBLIC


def always(mark: Sensitivity) -> Callable[[Any, Mapping[str, Sensitivity]], Sensitivity]:
    """A ``yields`` rule that does not depend on settings or inputs."""
    return lambda settings, inputs: mark


@dataclass(frozen=True)
class Stage:
    """A kind of stage; a run may hold several stages of one kind.

    Attributes:
        kind: The name of its folder under ``stages/``.
        settings: Frozen dataclass of its settings.
        runs: ``"module:function"``, imported only when the stage is computed.
        side: Who runs it.
        roles: Names of the inputs it needs.
        optional_roles: Names of inputs that may be left out or null.
        accepts: Kinds of stages that can supply an input, by role; a role not named here takes any.
        yields: The mark of the artifact, from settings and the marks of the inputs.
        data: Names of the data sources it reads.
        keeps_private: Whether the artifact, though released, holds files or notes that no server is shown (see
            ``StageContext.save_private``). What clients and auditors make of it counts as made of private records.
        trains: Whether every process takes part (a Trainer); a computed stage runs on rank zero only.
        uncovered: What leaves the clients here without a formal guarantee, given the settings.
        price: (ε, δ) of what leaves the clients here, from the settings alone; (∞, 0) for a release without
            guarantee, None for a stage that releases nothing.
        check_suppliers: Refuses settings that do not fit the planned stages that supply the inputs, given by role,
            with a ConfigError that names the key below the config path of the stage.
    """

    kind: str
    settings: type
    runs: str
    side: Side
    roles: tuple[str, ...] = ()
    optional_roles: tuple[str, ...] = ()
    accepts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    yields: Callable[[Any, Mapping[str, Sensitivity]], Sensitivity] = inherited
    data: tuple[str, ...] = ()
    keeps_private: bool = False
    trains: bool = False
    uncovered: Callable[[Any], tuple[str, ...]] = lambda settings: ()
    price: Callable[[Any], tuple[float, float] | None] = lambda settings: None
    check_suppliers: Callable[[Any, Mapping[str, Any], str], None] = lambda settings, suppliers, path: None

    def load(self) -> RunFunction:
        """Import the function that runs the stage (and with it torch)."""
        module, function = self.runs.split(":")
        return getattr(importlib.import_module(module), function)


def find_stage(kind: str, key: str) -> Stage:
    """The stage of this kind: a folder of ``fedsynth.stages``, or a ``package.module`` with a ``STAGE``.

    Raises:
        ConfigError: If there is none; the message lists those there are.
    """
    module = kind if "." in kind else f"fedsynth.stages.{kind}.spec"
    try:
        if kind.startswith("."):
            raise ModuleNotFoundError(kind, name=module)
        return importlib.import_module(module).STAGE
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        missing = getattr(error, "name", None) or module
        # The stage is there, but something it imports is not installed: that is another fault.
        if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{key}.stage={kind} cannot be loaded: {error}. Install that package."
            ) from error
        folder = Path(__file__).parent.parent / "stages"
        known = ", ".join(sorted(path.parent.name for path in folder.glob("*/spec.py")))
        raise ConfigError(
            f"{key}.stage must name a kind of stage, got {kind!r}. Known kinds: {known}."
        ) from error
