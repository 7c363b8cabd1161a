"""What sampling demands of the planned denoisers, codec and features. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.stages.diadm.spec import RAW
from fedsynth.stages.same_images import check_made_of_same_images

#: Inputs that must be made of the very training images whose rows the candidates name.
OF_THE_IMAGES = ("denoiser", "codec", "features", "guide")


def check_one_site(suppliers: Mapping[str, Any], path: str) -> None:
    """Refuse networks or features of other images than those that candidates are made for.

    Raises:
        ConfigError: Naming the input; also if a feature-conditional denoiser has no features.
    """
    check_made_of_same_images(suppliers, OF_THE_IMAGES, path)
    denoiser = suppliers["denoiser"]
    for role in ("denoiser", "guide"):
        if role in suppliers and suppliers[role].inputs["codec"] != suppliers["codec"].name:
            raise ConfigError(
                f"{path}.inputs.codec={suppliers['codec'].name} is not the codec of the latents that "
                f"{suppliers[role].name} is trained on, {suppliers[role].inputs['codec']}.",
                key=f"{path}.inputs.codec",
            )
    if denoiser.settings.condition == "feature" and (
        "features" not in suppliers or suppliers["features"].name != denoiser.inputs.get("features")
    ):
        raise ConfigError(
            f"{path}.inputs.features must be {denoiser.inputs.get('features')}, whose features {denoiser.name} is "
            "conditioned on.",
            key=f"{path}.inputs.features",
        )


def check_ema_width(ema_width: float | None, guidance: str, suppliers: Mapping[str, Any], path: str) -> None:
    """Refuse an average that the denoiser, or a guide that the guidance reads, does not keep.

    Raises:
        ConfigError: Naming the widths there are.
    """
    if ema_width is None or ema_width == RAW:
        return
    for role in ("denoiser", "guide") if guidance in ("unconditional", "both") else ("denoiser",):
        if role in suppliers and ema_width not in suppliers[role].settings.ema_widths:
            widths = ", ".join(f"{width:g}" for width in suppliers[role].settings.ema_widths)
            raise ConfigError(
                f"{path}.ema_width must be one of {widths}, which {suppliers[role].name} keeps averages of "
                f"(image_network.ema_widths), 0 for its raw weights, or null for its own, got {ema_width:g}. Set "
                "image_sampler.ema_width.",
                key=f"{path}.ema_width",
            )


def check_guide(guidance: str, suppliers: Mapping[str, Any], path: str) -> None:
    """Refuse guidance for which there is no second network that differs from the first.

    Raises:
        ConfigError: Naming the input ``guide`` and what would serve.
    """
    denoiser, guide = suppliers["denoiser"], suppliers.get("guide")
    if guidance not in ("unconditional", "both"):
        return
    if guide is not None:
        if guide.settings.condition != "none" and not guide.settings.condition_dropout:
            raise ConfigError(
                f"{path}.inputs.guide={guide.name} must know images without a condition, but is trained with condition="
                f"{guide.settings.condition} always given. Use a diadm stage with condition=none.",
                key=f"{path}.inputs.guide",
            )
        return
    if denoiser.settings.condition == "none" and guidance == "unconditional":
        raise ConfigError(
            f"{path}.guidance=unconditional changes nothing: {denoiser.name} has no condition to begin with. Say "
            "image_sampler.guidance=earlier (or none), or name another guide.",
            key=f"{path}.guidance",
        )
    if denoiser.settings.condition != "none" and not denoiser.settings.condition_dropout:
        raise ConfigError(
            f"{path}.inputs.guide is missing: guidance {guidance} needs an unconditional network. Name a diadm stage "
            f"with condition=none, or train {denoiser.name} with image_network.condition_dropout above 0.",
            key=f"{path}.inputs.guide",
        )
