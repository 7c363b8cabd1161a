"""A tiny file in the layout of Kermany's X-rays, and the stage ``xray_images`` on it."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tiny_stages import TRAINER

from fedsynth.composition import compose_config, resolved
from fedsynth.data.sources import locate
from fedsynth.data.xray.source import XRAY, XraySource, combine
from fedsynth.pipeline.planner import plan_stages
from fedsynth.run_sources import planner_sources
from fedsynth.stages.xray_images.spec import XrayImagesSettings

STORED = 16  # pixels


def write_kermany(folder: Path, per_class: int = 40, *, color: bool = False) -> Path:
    """``per_class`` children a class, every second with two images; class and child show in the grey levels."""
    rng = np.random.default_rng(0)
    images, etiology, key, split = [], [], [], []
    for number, kind in enumerate(("normal", "bacteria", "virus")):
        for child in range(per_class):
            face = rng.integers(0, 60, (STORED, STORED))
            for _ in range(1 + child % 2):
                images.append(face + 60 * number + rng.integers(0, 20, (STORED, STORED)))
                etiology.append(kind)
                key.append(f"{kind}/person{child}")
                split.append("test" if child % 5 == 0 else "train")
    pixels = np.stack(images).astype(np.uint8)
    (folder / "chest").mkdir(parents=True)
    np.savez(
        folder / "chest" / "kermany_pediatric_64.npz",
        images=np.repeat(pixels[..., None], 3, axis=-1) if color else pixels,
        etiology=np.array(etiology),
        patient_key=np.array(key),
        split=np.array(split),
    )
    return folder


def xray_source(folder: Path) -> dict[str, XraySource]:
    """The sources of a run whose stages name Kermany's images below a folder."""
    return {XRAY: combine({"kermany": locate("kermany", folder, download=False)})}


@cache
def _planned(data: str, overrides: tuple[str, ...]) -> Any:
    config = resolved(
        compose_config(
            [f"+data={data}", "+stage@stages.images=xray_images", "experiment_name=tiny", *overrides]
        )
    )
    return plan_stages(config["stages"], TRAINER, planner_sources({}))[0]


def xray_settings(data: str = "kermany", *overrides: str, **changes: Any) -> XrayImagesSettings:
    """The settings of the stage under a data config, resized to 8 pixels unless said otherwise."""
    return dataclasses.replace(_planned(data, overrides).settings, **({"image_size": 8} | changes))
