"""A release that keeps a file and a note from servers, and a reader that lists all it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedsynth.errors import FedSynthError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, Sensitivity, Side, Stage, StageContext
from toystages.behavior import ToySettings

SECRET = 8_675_309


def keep(settings: ToySettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    import torch

    context.save("numbers.safetensors", {"shown": torch.tensor([1])})
    context.save_private("numbers.safetensors", {"origin": torch.tensor([SECRET])})
    context.save_private("alone.safetensors", {"origin": torch.tensor([SECRET])})
    notes = {"count": 1, "private": {"origin": SECRET}}
    return Outcome(metrics=[Metric("toy", "refused", SECRET, 0)], notes=notes)


def read(settings: ToySettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """What ``release`` gives: by its methods, in its manifest, and in the whole folder it names."""
    given, seen, refused = inputs["release"], {}, []
    for name in ("numbers.safetensors", "alone.safetensors", "private/numbers.safetensors"):
        try:
            seen[name] = {key: values.tolist() for key, values in given.load(name).items()}
        except FedSynthError as error:
            refused.append([name, type(error).__name__])
    files = sorted(str(path.relative_to(given.path)) for path in given.path.rglob("*") if path.is_file())
    found = {"seen": seen, "refused": refused, "files": files, "manifest": given.manifest}
    (context.output / "result.json").write_text(json.dumps(found))
    return Outcome()


STAGE = Stage(
    kind="keeper",
    settings=ToySettings,
    runs="toystages.keeper:keep",
    side=Side.CLIENT,
    roles=("numbers",),
    yields=lambda settings, inputs: Sensitivity.RELEASED,
    keeps_private=True,
)
