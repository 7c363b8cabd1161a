"""The one app: ``python -m fedsynth.train experiment=feddp_pald`` (Hydra). Torch is imported after the checks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from dotenv import load_dotenv
from omegaconf import DictConfig

from fedsynth.composition import CONFIG_DIR, compose_config, expand_sweep, register_resolvers
from fedsynth.console import print_error
from fedsynth.errors import FedSynthError
from fedsynth.run import Run

# Flags that ask Hydra for something other than a run.
HYDRA_ONLY = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version", "--shell-completion", "-sc")


def check_before_running(arguments: Sequence[str]) -> bool:
    """Compose and check every config that these arguments ask for.

    Returns:
        True if there is something to run; False if ``plan=true`` has been answered here.
    """
    if any(argument.split("=")[0] in HYDRA_ONLY for argument in arguments):
        return True
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    planned = False
    is_sweep = bool({"-m", "--multirun"} & set(arguments))
    for combination in expand_sweep(overrides) if is_sweep else [overrides]:
        run = Run(compose_config(combination))
        run.check()
        if run.config["plan"]:
            run.print_plan()
            planned = True
    return not planned


@hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")
def _app(config: DictConfig) -> None:
    run_dir = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    with _one_message():
        Run(config, run_dir).execute()


class _one_message:  # noqa: N801 - reads as a statement
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


def main() -> None:
    """Entry point of ``python -m fedsynth.train`` and ``fedsynth-train``."""
    load_dotenv(Path.cwd() / ".env")
    register_resolvers()
    with _one_message():
        if check_before_running(sys.argv[1:]):
            _app()


if __name__ == "__main__":
    main()
