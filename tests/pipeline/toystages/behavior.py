"""What all toy stages share: settings that say how to behave, and the functions that run."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsynth.errors import PrivacyError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Metric, Outcome, StageContext


@dataclass(frozen=True)
class ToySettings:
    value: float = setting(minimum=0.0, allow_infinite=True, remedy="Toys count from zero.")
    behavior: str = setting(in_key=False)


class ToyError(RuntimeError):
    """What a toy raises when told to fail."""


def behave(behavior: str, context: StageContext) -> None:
    """Leave a trace of the call, then do what the test asks for. A wait ends when its file is there."""
    with (context.scratch.parent.parent / "calls.log").open("a") as log:
        log.write(f"{context.name} {os.getpid()}\n")
    if behavior == "fail":
        raise ToyError("told to fail")
    if behavior.startswith("refuse "):
        raise PrivacyError(behavior.removeprefix("refuse "))
    if behavior == "interrupt":
        (context.scratch / "checkpoint").write_text("epoch 3")
        raise KeyboardInterrupt
    if behavior == "interrupt as lightning does":
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)
    if behavior == "terminate as lightning does":

        class SIGTERMException(SystemExit):
            """As in lightning.pytorch.utilities.exceptions: no exit status."""

        raise SIGTERMException
    if behavior == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if behavior == "note threads":
        import torch

        (context.scratch.parent.parent / f"threads-{context.name}").write_text(str(torch.get_num_threads()))
    if behavior.startswith("wait:"):
        (context.output / "half-written.json").write_text('{"half": ')
        deadline = time.monotonic() + 60
        while not Path(behavior.removeprefix("wait:")).exists():
            assert time.monotonic() < deadline, "nobody ended the wait"
            time.sleep(0.02)


def run(settings: ToySettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    behave(settings.behavior, context)
    fed = {role: json.loads(artifact.file("result.json").read_text()) for role, artifact in inputs.items()}
    result = settings.value + sum(fed.values())
    if context.rank == 0:
        (context.output / "result.json").write_text(json.dumps(result))
    return Outcome(metrics=[Metric("toy", "sum", result, 42)], ledger=[{"epsilon": 1.0}], notes={"fed": fed})
