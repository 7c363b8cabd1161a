"""From which images a stage of PSO-secure sharing comes: found by walking the inputs in the config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.report.paper import PaperValue, read_paper_values
from fedsynth.report.pso_emulation import EMULATED, RELEASED_CODE, emulated_title
from fedsynth.report.pso_names import FILTERED, SOFT_LABELS, SYSTEMS, image_rank, image_title, paper_arm
from fedsynth.report.runs import Run
from fedsynth.report.section import Material, Row

Config = Mapping[str, Any]
#: The ``labels`` of ``select_images``.
SOFT = "soft"
CLASSIFIER, SITE_TEST, CROSS_VALIDATION = "tstr_densenet", "site_test", "cross_validation"
#: Heading of numbers that the paper printed; they are of other data and networks.
PAPER_HEADING = "paper"
#: Real images again, as many as candidates were made of.
SOURCES = "real images of the sources alone"
GUIDES = {
    "unconditional": "unconditional guide",
    "earlier": "autoguidance",
    "both": "earlier unconditional guide",
}


@dataclass(frozen=True)
class Origin:
    """Where labelled images come from.

    Attributes:
        title: In words: what generated them, and whether the identity filter chose among them.
        sites: Stages of real images behind them.
        is_filtered: Whether an identity filter chose among candidates.
        is_emulated: Whether it did so (for some of them) as the released code does, and may have let flagged ones pass.
        has_soft_labels: Whether (some of) the images come with what classifiers say of them, to learn from.
    """

    title: str
    sites: tuple[str, ...]
    is_filtered: bool = False
    is_emulated: bool = False
    has_soft_labels: bool = False


NOWHERE = Origin("", ())


@dataclass(frozen=True)
class ImageSystem:
    """One stage about one set of images: a classifier trained on it, or an audit of it.

    Attributes:
        arm: Under which the stage states its numbers.
        stage: Name of the stage.
        images: Stage that made the images.
        tested: Stage of the real images it is tested on.
        origin: Where the images come from.
        label: What to call it.
    """

    arm: str
    stage: str
    images: str
    tested: str
    origin: Origin
    label: str

    @property
    def row(self) -> Row:
        return Row(self.label, self.stage, self.arm)

    @property
    def paper_arm(self) -> str:
        return paper_arm(
            self.arm, is_filtered=self.origin.is_filtered, has_soft_labels=self.origin.has_soft_labels
        )

    @property
    def is_own_site(self) -> bool:
        """Whether it is tested on (one of) the sites its images come from."""
        return self.tested in self.origin.sites


def stage_config(config: Config, name: str) -> dict[str, Any]:
    return dict((config.get("stages") or {}).get(name) or {})


def inputs_of(config: Config, name: str) -> dict[str, str]:
    """Role → stage, of roles that are connected."""
    inputs = stage_config(config, name).get("inputs") or {}
    return {str(role): str(stage) for role, stage in inputs.items() if stage}


def origin_of(config: Config, name: str, depth: int = 0) -> Origin | None:
    """Where the images of stage ``name`` come from; None where no stage of real images is found behind it."""
    one, inputs = stage_config(config, name), inputs_of(config, name)
    kind = one.get("stage")
    if kind == "xray_images":
        return Origin(SYSTEMS["real"], (name,))
    if depth > len(config.get("stages") or {}):  # a broken config may hold a cycle
        return None
    if kind == "data_sharing":
        found = [origin_of(config, stage, depth + 1) for stage in inputs.values()]
        sites = tuple(dict.fromkeys(site for origin in found if origin for site in origin.sites))
        is_filtered = bool(found) and all(origin is not None and origin.is_filtered for origin in found)
        is_emulated = any(origin is not None and origin.is_emulated for origin in found)
        is_soft = any(origin is not None and origin.has_soft_labels for origin in found)
        marks = (f", {EMULATED}" if is_emulated else "") + (f", {SOFT_LABELS}" if is_soft else "")
        title = f"shared sets of {len(sites)} sites{marks}"
        return Origin(title, sites, is_filtered, is_emulated, is_soft) if sites else None
    root = origin_of(config, inputs["images"], depth + 1) if "images" in inputs else None
    if root is None:
        return None
    if kind == "source_images":
        return Origin(SOURCES, root.sites)
    if kind == "vae_reconstruction":
        return Origin(SYSTEMS["vae_reconstruction"], root.sites)
    if kind == "select_images":
        is_filtered = "reidentifier" in inputs and one.get("filter") != "none"
        is_emulated = is_filtered and one.get("filter") == RELEASED_CODE
        word = EMULATED if is_emulated else FILTERED if is_filtered else f"un{FILTERED}"
        is_soft = one.get("labels") == SOFT
        title = f"{_generator(config, inputs)}, {word}" + (f", {SOFT_LABELS}" if is_soft else "")
        return Origin(title, root.sites, is_filtered, is_emulated, is_soft)
    return None


def emulated_arms(runs: Iterable[Run]) -> frozenset[str]:
    """Arms under which some stage of the runs states numbers about images chosen as the released code does it.

    An arm is a name that the user gave, often one that ends in ``filtered``; what was done stands in the config.
    """
    return frozenset(
        arm
        for run in runs
        for arm, name in _arms(run)
        if (origin_of(run.config, name) or NOWHERE).is_emulated
    )


def _arms(run: Run) -> Iterator[tuple[str, str]]:
    """(arm, stage that made the images it is about) of every stage that has an arm, or has several."""
    for name in run.config.get("stages") or {}:
        inputs = inputs_of(run.config, name)
        if stage_config(run.config, name).get("stage") == SITE_TEST:
            inputs = inputs_of(run.config, inputs.get("classifier", ""))
        if arm := stage_config(run.config, name).get("arm"):
            yield str(arm), inputs.get("train") or inputs.get("released") or name
    for stage in run.of_kind(CROSS_VALIDATION):
        yield from dict(stage.notes.get("stages") or {}).items()


def _generator(config: Config, inputs: Mapping[str, str]) -> str:
    """``diffusion on features (efficientnet_lite0), autoguidance``: condition and guidance of the candidates."""
    candidates = inputs.get("candidates", "")
    made = inputs_of(config, candidates)
    denoiser = made.get("denoiser") or inputs.get("denoiser", "")
    condition = str(stage_config(config, denoiser).get("condition") or "none")
    encoder = _encoder(config, inputs_of(config, denoiser).get("features", ""))
    words = {"none": "unconditional diffusion", "class": "class-conditional diffusion"}
    text = words.get(
        condition, "diffusion on features" + (f" ({encoder})" if isinstance(encoder, str) else "")
    )
    guidance = stage_config(config, candidates).get("guidance")
    kind = guidance.get("kind") if isinstance(guidance, dict) else guidance
    return text + (f", {GUIDES[str(kind)]}" if str(kind) in GUIDES else "")


def _encoder(config: Config, features: str) -> str | None:
    """Whose features a stage holds; of joined ones ``efficientnet_lite0 + classifier``."""
    one = stage_config(config, features)
    if one.get("stage") == "joined_features":
        return f"{_encoder(config, inputs_of(config, features).get('features', ''))} + classifier"
    encoder = one.get("encoder")
    return encoder if isinstance(encoder, str) else None


def image_systems(material: Material, kind: str, role: str) -> list[ImageSystem]:
    """Every stage of a kind about a set of images, in the paper's order.

    Args:
        material: Runs and their config.
        kind: Of the stages, such as ``tstr_densenet`` or ``audit_images``.
        role: The input that holds the images the stage is about; of a ``site_test`` that of its classifier.
    """
    config = material.runs[0].config
    found = []
    for name in material.names(kind):
        inputs = inputs_of(config, name)
        if kind == SITE_TEST:  # it is about the images that its classifier was trained on
            inputs = {**inputs_of(config, inputs.get("classifier", "")), **inputs}
        origin = origin_of(config, inputs.get(role, ""))
        if origin is None:
            continue
        arms = [record.arm for record in material.records if record.stage == name]
        arm = str(stage_config(config, name).get("arm") or (arms[0] if arms else name))
        found.append(
            ImageSystem(arm, name, inputs[role], inputs.get("images", ""), origin, _label(arm, origin))
        )
    return sorted(found, key=lambda one: (*image_rank(one.arm), one.stage))


def _label(arm: str, origin: Origin) -> str:
    title = image_title(arm)
    if title is None:
        return f"{origin.title} ({arm})"
    if origin.is_emulated:
        return emulated_title(title)
    if origin.is_filtered and FILTERED not in title and "shared" not in title:
        title = f"{title}, {FILTERED}"
    return f"{title}, {SOFT_LABELS}" if origin.has_soft_labels and SOFT_LABELS not in title else title


def site_name(material: Material, stage: str) -> str:
    """What the stage of real images calls its site, else its data set, which then is one."""
    one = stage_config(material.runs[0].config, stage)
    site = one.get("site")
    return f"site {site}" if isinstance(site, int) else str(site or one.get("dataset") or stage)


def printed_rows(material: Material, place: str) -> dict[tuple[str, str], PaperValue]:
    """What the paper printed in one of its tables, by (arm, metric), whatever the settings of the runs.

    Reference values for the eye, not for a comparison: those that hold for the runs are ``Material.published``.
    """
    values = read_paper_values(material.runs[0].config)
    return {(value.arm, value.metric): value for value in values if value.place == place}
