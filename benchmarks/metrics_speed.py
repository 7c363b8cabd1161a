"""Speed and memory of the neighbor-based metrics against the `prdc` package and scikit-learn, in one run.

    python benchmarks/metrics_speed.py [repeats]

Every contender runs in a fresh process, in turn, on the same data; the table shows the best of `repeats` (3)
wall-clock and CPU times, the ratio of CPU times to ours, the peak memory the call added, and the largest
difference of the results. On a busy machine trust the CPU times, with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

DIM = 64


def _points(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, DIM), dtype=np.float32)


def _prdc_ours(real: np.ndarray, synthetic: np.ndarray) -> list[float]:
    from fedsynth.evaluation import prdc

    return list(prdc(real=real, synthetic=synthetic))


def _prdc_package(real: np.ndarray, synthetic: np.ndarray) -> list[float]:
    from prdc import compute_prdc

    result = compute_prdc(real, synthetic, nearest_k=5)
    return [float(result[name]) for name in ("precision", "recall", "density", "coverage")]


def _neighbors_ours(query: np.ndarray, reference: np.ndarray) -> list[float]:
    from fedsynth.evaluation import nearest_neighbors

    distance = nearest_neighbors(query, reference).distance
    return [float(distance.mean()), float(distance.min())]


def _neighbors_sklearn(query: np.ndarray, reference: np.ndarray) -> list[float]:
    from sklearn.metrics import pairwise_distances_argmin_min

    distance = pairwise_distances_argmin_min(query, reference)[1]
    return [float(distance.mean(dtype=np.float64)), float(distance.min())]


#: task -> (points in the first and second set, contender -> function); ours comes first.
TASKS: dict[str, tuple[tuple[int, int], dict[str, Callable[[np.ndarray, np.ndarray], list[float]]]]] = {
    "PRDC, k=5, 5k x 5k": ((5_000, 5_000), {"fedsynth": _prdc_ours, "prdc": _prdc_package}),
    "nearest, 5k x 5k": ((5_000, 5_000), {"fedsynth": _neighbors_ours, "scikit-learn": _neighbors_sklearn}),
    "nearest, 100k x 5k": (
        (100_000, 5_000),
        {"fedsynth": _neighbors_ours, "scikit-learn": _neighbors_sklearn},
    ),
}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _measure(task: str, contender: str) -> None:
    """Run one contender in this process and print its result as one line of JSON."""
    sizes, contenders = TASKS[task]
    run = contenders[contender]
    run(_points(64, 2), _points(64, 3))  # imports and thread pools
    first, second = _points(sizes[0], 0), _points(sizes[1], 1)
    before, start, cpu_start = _peak_bytes(), time.perf_counter(), time.process_time()
    values = run(first, second)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    grown = _peak_bytes() - before
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": grown, "values": values}))


def _run_process(task: str, contender: str) -> dict:
    command = [sys.executable, __file__, "--measure", task, contender]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    table = Table("task", "contender", "seconds", "CPU s", "CPU / ours", "peak MB", "largest difference")
    for task, (_, contenders) in TASKS.items():
        runs: dict[str, list[dict]] = {name: [] for name in contenders}
        for _ in range(repeats):  # taken in turn, so that load on the machine hits all alike
            for name in contenders:
                runs[name].append(_run_process(task, name))
        ours = next(iter(runs.values()))
        for name, results in runs.items():
            seconds, cpu = (min(result[key] for result in results) for key in ("seconds", "cpu_seconds"))
            difference = np.abs(np.subtract(results[0]["values"], ours[0]["values"])).max()
            table.add_row(
                task,
                name,
                f"{seconds:.2f}",
                f"{cpu:.2f}",
                f"{cpu / min(result['cpu_seconds'] for result in ours):.2f}",
                f"{max(result['bytes'] for result in results) / 1e6:.0f}",
                f"{difference:.1e}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        _measure(*sys.argv[2:4])
    else:
        main()
