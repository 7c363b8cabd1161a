"""Every setting that names weights on this machine enters the key by their content."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsynth import stages
from fedsynth.composition import compose_config, resolved
from fedsynth.pipeline.fingerprint import fingerprint
from fedsynth.pipeline.planner import RESERVED
from fedsynth.pipeline.settings import build_settings, key_values
from fedsynth.pipeline.stage import find_stage


def as_file(folder: Path, content: bytes) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.safetensors").write_bytes(content)
    return str(folder / "weights.safetensors")


def as_folder(folder: Path, content: bytes) -> str:
    as_file(folder / "vae", content)
    return str(folder)


def as_text_encoder(folder: Path, content: bytes) -> str:
    return f"transformers:{as_folder(folder, content)}"


def keyed_settings(kind: str, *words: str) -> dict[str, Any]:
    data = () if any(word.startswith("+data=") for word in words) else ("+data=kermany",)
    config = resolved(compose_config([f"+stage@stages.one={kind}", "experiment_name=tiny", *data, *words]))
    values = {name: value for name, value in config["stages"]["one"].items() if name not in RESERVED}
    return key_values(build_settings(find_stage(kind, "one").settings, values, "stages.one"))


def key(kind: str, *words: str) -> str:
    return fingerprint(keyed_settings(kind, *words))


Make = Callable[[Path, bytes], str]
CASES: list[tuple[str, tuple[str, ...], str, Make]] = [
    ("pseudo_features", ("+image_encoder=swav",), "image_encoder.weights", as_file),
    ("diadm", ("+image_network=cpu",), "image_network.init_weights", as_file),
    ("reidentifier", ("+reidentification=resnet50",), "reidentification.weights", as_file),
    (
        "tstr_densenet",
        ("+image_classifier=densenet121", "stages.one.arm=real"),
        "image_classifier.weights",
        as_file,
    ),
    ("cross_validation", ("+image_classifier=densenet121",), "image_classifier.weights", as_file),
    ("image_codec", ("+codec=sd_vae",), "codec.weights", as_folder),
    ("speech_clients", ("+data=edaic",), "data.text_encoder", as_text_encoder),
]


@pytest.mark.parametrize(("kind", "groups", "name", "make"), CASES, ids=[case[0] for case in CASES])
def test_weights_count_by_content_and_not_by_place(
    tmp_path: Path, kind: str, groups: tuple[str, ...], name: str, make: Make
) -> None:
    def keyed(folder: str, content: bytes) -> str:
        return key(kind, *groups, f"{name}={make(tmp_path / folder, content)}")

    first = keyed("a", b"weights")
    assert keyed("b", b"weights") == first
    assert keyed("b", b"others") != first
    # Other bytes under the old path.
    assert keyed("a", b"others") == keyed("b", b"others")


def test_only_the_part_of_a_folder_that_a_codec_reads_counts(tmp_path: Path) -> None:
    def keyed(folder: str) -> str:
        return key("image_codec", "+codec=sd_vae", f"codec.weights={tmp_path / folder}")

    as_folder(tmp_path / "one", b"weights")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "unet.safetensors").write_bytes(b"not read")
    assert keyed("one") == keyed("two")


def test_published_weights_count_by_their_name() -> None:
    assert (
        keyed_settings("tstr_densenet", "+image_classifier=densenet121", "stages.one.arm=real")["weights"]
        == "imagenet"
    )
    assert keyed_settings("reidentifier", "+reidentification=resnet50")["weights"] == "download"
    codec = keyed_settings("image_codec", "+codec=sd_vae")["codec"]
    assert codec["weights"] == "stabilityai/stable-diffusion-2"
    assert set(codec) == set(resolved(compose_config(["+codec=sd_vae", "+data=kermany", "experiment_name=tiny",
                                                      "+stage@stages.one=image_codec"]))["codec"])  # fmt: skip


def test_no_setting_called_weights_counts_by_its_path() -> None:
    specs = {path.parent.name for path in Path(stages.__file__).parent.glob("*/spec.py")}
    plain = {
        f"{kind}.{field.name}"
        for kind in specs
        for field in dataclasses.fields(find_stage(kind, kind).settings)
        if field.name in ("weights", "init_weights") and field.metadata["as_key"] is None
    }
    assert not plain
    assert {"diadm", "pseudo_features", "reidentifier", "tstr_densenet", "cross_validation"} <= specs
