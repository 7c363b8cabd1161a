"""The stored scores of a system, whichever stage left them.

A system is a classifier of test records: one arm of a ``fusion_encoder``, or one classifier seed of a ``tstr_mlp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.pipeline.artifacts import Artifact

SCORES = "scores.safetensors"


@dataclass(frozen=True)
class SystemScores:
    """One system on validation and test records.

    Attributes:
        title: Stage, arm and seed, for messages and notes.
        arm: As in the metrics of its stage.
        seed: As in the metrics of its stage.
        threshold: Chosen by its stage on validation records.
    """

    title: str
    arm: str
    seed: int
    threshold: float
    labels: Mapping[str, Int[Tensor, " n"]]
    probabilities: Mapping[str, Float[Tensor, " n"]]
    logits: Mapping[str, Float[Tensor, " n"]]

    def label(self, split: str) -> Int[Tensor, " n"]:
        """0 or 1 of every record of ``val`` or ``test``."""
        return self._stored(self.labels, split, "label")

    def probability(self, split: str) -> Float[Tensor, " n"]:
        """p1 of every record of ``val`` or ``test``."""
        return self._stored(self.probabilities, split, "probability")

    def logit(self, split: str) -> Float[Tensor, " n"]:
        """log p1 / (1 - p1), stored as it was computed: a saturated probability cannot give it back."""
        return self._stored(self.logits, split, "logit")

    def _stored(self, tensors: Mapping[str, Tensor], split: str, what: str) -> Tensor:
        if split not in tensors:
            raise ArtifactError(
                f"{self.title} has no {split}.{what} in {SCORES}. Compute that stage anew: force=[its name]."
            )
        return tensors[split]


def read_systems(artifact: Artifact, arm: str | None, key: str) -> list[SystemScores]:
    """Every system of an artifact with this arm, in the order of the seeds.

    Args:
        artifact: Of a ``fusion_encoder`` or a ``tstr_mlp``.
        arm: ``both``, ``image_only`` or ``ecg_only`` for the former, None for the latter.
        key: The config key that gave the arm.

    Raises:
        ConfigError: If the artifact holds no such arm.
        ArtifactError: If it holds no thresholds.
    """
    settings = artifact.manifest["settings"]
    tensors = artifact.load(SCORES)
    if "classifier_seeds" in settings:
        if arm is not None:
            raise ConfigError(
                f"{key} must be null for {artifact.stage}, which holds one arm, got {arm!r}.", key=key
            )
        seeds, name, prefix = list(settings["classifier_seeds"]), settings["arm"], ""
    else:
        arms = sorted(
            {tensor.rpartition("/")[0] for tensor in tensors if tensor.endswith("/test.probability")}
        )
        if arm not in arms:
            raise ConfigError(
                f"{key} must be one of {', '.join(arms)}, the arms of {artifact.stage}, got {arm!r}.", key=key
            )
        seeds, name, prefix = [settings["seed"]], arm, f"{arm}/"
    thresholds = {
        row["seed"]: float(row["value"])
        for row in artifact.manifest["metrics"]
        if (row["arm"], row["metric"]) == (name, "test/threshold")
    }
    lacking = [seed for seed in seeds if seed not in thresholds]
    if lacking:
        raise ArtifactError(
            f"{artifact.stage} reports no test/threshold of arm {name!r} for the seeds {lacking}. "
            "Compute that stage anew: force=[its name]."
        )

    def of(row: int, what: str) -> dict[str, Tensor]:
        found = {split: tensors.get(f"{prefix}{split}.{what}") for split in ("val", "test")}
        return {
            split: tensor[row] if tensor.ndim == 2 else tensor
            for split, tensor in found.items()
            if tensor is not None
        }

    labels = {split: tensors[f"{split}.label"] for split in ("val", "test") if f"{split}.label" in tensors}
    return [
        SystemScores(
            title=f"{artifact.stage} ({name}, seed {seed})",
            arm=name,
            seed=seed,
            threshold=thresholds[seed],
            labels=labels,
            probabilities=of(row, "probability"),
            logits=of(row, "logit"),
        )
        for row, seed in enumerate(seeds)
    ]


def require_same_records(first: SystemScores, second: SystemScores, split: str) -> None:
    """Refuse two systems whose labels differ: their records do, so nothing about them is paired.

    Equal labels are necessary, not sufficient: no record numbers are stored beside scores.

    Raises:
        ConfigError: With both sizes, or the first record that differs.
    """
    one, other = first.label(split), second.label(split)
    if len(one) != len(other):
        problem = f"{len(one)} and {len(other)} records"
    elif not bool((one == other).all()):
        problem = (
            f"record {int((one != other).nonzero()[0, 0])} is labeled {int(one[(one != other)][0])} and "
        )
        problem += f"{int(other[(one != other)][0])}"
    else:
        return
    raise ConfigError(
        f"{first.title} and {second.title} were not scored on the same {split} records: {problem}. "
        "Take both from one run, with the same data settings."
    )
