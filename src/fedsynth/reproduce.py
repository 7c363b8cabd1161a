"""``python -m fedsynth.reproduce paper=NAME``: check that a paper can be reproduced, and say what will run.

``make reproduce`` asks this first, then sweeps ``experiment=NAME/paper`` over the paper's seeds and writes one report.
It answers at once: nothing is computed here, and no torch is imported.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from fedsynth.composition import CONFIG_DIR
from fedsynth.console import print_error
from fedsynth.errors import ConfigError, FedSynthError


def known_papers() -> list[str]:
    """Papers with an experiment that holds all of their tables: ``configs/experiment/NAME/paper.yaml``."""
    return sorted(path.parent.name for path in (CONFIG_DIR / "experiment").glob("*/paper.yaml"))


def paper_of(arguments: Sequence[str]) -> str:
    """The paper that ``paper=NAME`` names.

    Raises:
        ConfigError: No paper, several, an unknown one, or an experiment typed beside it.
    """
    given: dict[str, str] = {}
    for word in arguments:
        key, separator, value = word.partition("=")
        if separator and key in ("paper", "experiment"):
            given[key] = value
    known = known_papers()
    if not given.get("paper"):
        raise ConfigError(f"paper is missing: say make reproduce paper=NAME. Papers: {', '.join(known)}.")
    if "experiment" in given:
        raise ConfigError(
            f"experiment={given['experiment']} and paper={given['paper']} exclude each other: a paper is the"
            f" experiment {given['paper']}/paper. Leave out experiment=…, or say make sweep."
        )
    if given["paper"] not in known:
        near = difflib.get_close_matches(given["paper"], known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"paper must be one of {', '.join(known)}, got {given['paper']!r}.{hint}")
    return given["paper"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 and one line on what follows, or 1 and one message."""
    try:
        name = paper_of(sys.argv[1:] if arguments is None else arguments)
    except FedSynthError as error:
        print_error(str(error))
        return 1
    print(
        f"All tables of {name}: experiment={name}/paper for each seed, then one report over the runs. Stored results"
        " are not computed again; after an interruption the same command goes on."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
