"""The one app: ``python -m fedsynth.train experiment=NAME`` (Hydra). Torch is imported after the checks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from dotenv import load_dotenv
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fedsynth.composition import (
    CONFIG_DIR,
    compose_config,
    expand_sweep,
    register_resolvers,
    sweep_parameters,
)
from fedsynth.console import print_error
from fedsynth.errors import ConfigError, FedSynthError
from fedsynth.pipeline.runner import Terminated
from fedsynth.run import Run

# These would make the run read another config than the checks below.
UNSUPPORTED = (
    "--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp", "--package", "-p",
    "--experimental-rerun",
)  # fmt: skip
# Flags that ask Hydra for something other than a run.
HYDRA_ONLY = (
    "--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version", "--shell-completion", "-sc",
)  # fmt: skip


def check_before_running(arguments: Sequence[str]) -> bool:
    """Compose and check every config that these arguments ask for.

    Returns:
        True if there is something to run; False if ``plan=true`` has been answered here.

    Raises:
        FedSynthError: For whatever can be known to be wrong before the first run of a sweep starts.
    """
    flags = {argument.split("=")[0] for argument in arguments if argument.startswith("-")}
    for flag in sorted(flags & set(UNSUPPORTED)):
        raise ConfigError(
            f"{flag} is not an option of this app. Put the file below configs/ and name it: experiment=NAME."
        )
    if flags & set(HYDRA_ONLY):
        # The value of such a flag, as in `--cfg job`, is no override.
        compose_config([argument for argument in arguments if "=" in argument and argument[0] != "-"])
        return True
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    is_sweep = bool({"-m", "--multirun"} & flags)
    brings_sweep = any(
        word.lstrip("+").startswith(("hparams_search=", "hydra.sweeper")) for word in overrides
    )
    if not is_sweep and brings_sweep and (swept := sweep_parameters(overrides)):
        raise ConfigError(
            f"this config sweeps over {', '.join(swept)}: say make sweep instead of make train (--multirun)."
        )
    combinations = list(expand_sweep(overrides)) if is_sweep else [overrides]
    runs = [Run(compose_config(combination)) for combination in combinations]
    for run in runs:
        run.check()
    planned = [run for run in runs if run.config["plan"]]
    for run in planned:
        run.print_plan()
    if not planned:
        runs[0].store.check_writable()
    return not planned


@hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")
def _app(config: DictConfig) -> None:
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    with _one_message():
        Run(config, run_dir).execute()


class _one_message:
    """Turn an error the user can mend into one message and exit status 1."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FedSynthError):
            print_error(str(error))
            raise SystemExit(1) from None
        if isinstance(error, KeyboardInterrupt):
            print_error("Interrupted. Finished stages are kept; the same command goes on from there.")
            raise SystemExit(130) from None
        if isinstance(error, Terminated):
            print_error("Terminated. Finished stages are kept; the same command goes on from there.")
            raise SystemExit(143) from None


def _terminate(signum: int, frame: object) -> NoReturn:
    # Lightning, while it trains, calls this after its own handler.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
    raise Terminated


def main() -> None:
    """Entry point of ``python -m fedsynth.train`` and ``fedsynth-train``."""
    load_dotenv(Path.cwd() / ".env")
    register_resolvers()
    with _one_message():
        # Several ranks stop together, at a step all of them agree on: there Lightning alone handles the signal.
        if os.environ.get("WORLD_SIZE", "1") == "1":
            signal.signal(signal.SIGTERM, _terminate)
        if check_before_running(sys.argv[1:]):
            _app()


if __name__ == "__main__":
    main()
