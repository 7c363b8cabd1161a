"""images → features of a frozen encoder: what image generation is conditioned on, and what the audit measures in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage
from fedsynth.stages.image_set_kinds import REAL_IMAGES

#: The pooled features of a classifier trained here, the paper's negative result; needs the input ``classifier``.
CLASSIFIER = "classifier"
#: Encoders whose weights are no part of an installed package.
NEED_WEIGHTS = ("swav", "inception")
ENCODERS = ("efficientnet_lite0", *NEED_WEIGHTS, CLASSIFIER)


@dataclass(frozen=True)
class PseudoFeaturesSettings:
    encoder: str = setting()
    weights: str | None = setting(is_file=True)
    weights_sha256: str | None = setting()
    allow_download: bool = setting(in_key=False)
    image_size: int | None = setting(minimum=1)
    batch_size: int = setting(minimum=1, in_key=False)

    def check(self, path: str) -> None:
        is_timm = self.encoder.startswith("timm:") and self.encoder != "timm:"
        if not is_timm and self.encoder not in ENCODERS:
            raise ConfigError(
                f"{path}.encoder must be one of {', '.join(ENCODERS)} or timm:NAME, got {self.encoder!r}. "
                "Choose with image_encoder=….",
                key=f"{path}.encoder",
            )
        digest = self.weights_sha256
        if digest is not None and not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ConfigError(
                f"{path}.weights_sha256 must be 64 hexadecimal digits (0-9, a-f) in quotes, or null, got {digest!r}. "
                "The notes of a run with null say it. Set image_encoder.weights_sha256.",
                key=f"{path}.weights_sha256",
            )
        if self.encoder == CLASSIFIER:
            self._check_classifier(path)
        elif self.weights is not None and not Path(self.weights).is_file():
            raise ConfigError(
                f"{path}.weights must be a file of weights, but there is none at {self.weights}. "
                "Set image_encoder.weights.",
                key=f"{path}.weights",
            )
        elif self.weights is None and (is_timm or self.encoder in NEED_WEIGHTS) and not self.allow_download:
            raise ConfigError(
                f"{path}.weights is null, but the weights of {self.encoder} come with no package and nothing is "
                "fetched without leave. Set image_encoder.weights to a local file, or "
                "image_encoder.allow_download=true.",
                key=f"{path}.weights",
            )

    def _check_classifier(self, path: str) -> None:
        for name in ("weights", "weights_sha256", "image_size"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{path}.{name} must be null with encoder=classifier, whose network is the input 'classifier', "
                    f"got {getattr(self, name)!r}.",
                    key=f"{path}.{name}",
                )


def _check_suppliers(settings: PseudoFeaturesSettings, suppliers: Mapping[str, Any], path: str) -> None:
    if (settings.encoder == CLASSIFIER) != ("classifier" in suppliers):
        got = "is there" if "classifier" in suppliers else "is missing"
        raise ConfigError(
            f"{path}.inputs.classifier {got} with encoder={settings.encoder}: it belongs to encoder=classifier and "
            "to no other. Set image_encoder.classifier to the name of a tstr_densenet stage, or to null.",
            key=f"{path}.inputs.classifier",
        )


STAGE = Stage(
    kind="pseudo_features",
    settings=PseudoFeaturesSettings,
    runs="fedsynth.stages.pseudo_features.run:run",
    side=Side.CLIENT,
    roles=("images",),
    optional_roles=("classifier",),
    accepts={"images": REAL_IMAGES, "classifier": ("tstr_densenet",)},
    check_suppliers=_check_suppliers,
)
