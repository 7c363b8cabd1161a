"""Speed and memory of the neighbor-based metrics against the `prdc` package and scikit-learn, in one run.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/metrics_speed.py [--repeats 7] [--large]

Contenders take turns on the same data, after a warm-up; the table shows medians of wall-clock and CPU seconds,
the median of the paired CPU ratios to ours (above 1: ours is faster), the peak memory the call added in a
process of its own (Linux only), and the largest difference of the results. `--large` adds PRDC of 100,000 against 5,000
points, where the `prdc` package would store distance matrices of 80 GB each; "scikit-learn" is then the same
measure from its brute-force neighbors and chunked distances.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

DIM = 64
Contender = Callable[[np.ndarray, np.ndarray], list[float]]


def _points(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, DIM), dtype=np.float32)


def _prdc_ours(real: np.ndarray, synthetic: np.ndarray) -> list[float]:
    from fedsynth.evaluation import prdc

    return list(prdc(real=real, synthetic=synthetic))


def _prdc_package(real: np.ndarray, synthetic: np.ndarray) -> list[float]:
    from prdc import compute_prdc

    with contextlib.redirect_stdout(io.StringIO()):  # it prints the sizes
        result = compute_prdc(real, synthetic, nearest_k=5)
    return [float(result[name]) for name in ("precision", "recall", "density", "coverage")]


def _prdc_sklearn(real: np.ndarray, synthetic: np.ndarray) -> list[float]:
    from sklearn.metrics import pairwise_distances_chunked
    from sklearn.neighbors import NearestNeighbors

    radii = []
    for points in (real, synthetic):
        search = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(points)
        radii.append(search.kneighbors()[0][:, -1])
    in_real, in_synthetic, covered = [], np.zeros(len(real), bool), np.zeros(len(real), bool)
    for distance in pairwise_distances_chunked(synthetic, real, working_memory=64):
        rows = slice(sum(map(len, in_real)), sum(map(len, in_real)) + len(distance))
        inside = distance <= radii[0]
        in_real.append(inside.sum(axis=1))
        covered |= inside.any(axis=0)
        in_synthetic |= (distance <= radii[1][rows, None]).any(axis=0)
    count = np.concatenate(in_real)
    return [
        float((count > 0).mean()),
        float(in_synthetic.mean()),
        float(count.mean() / 5),
        float(covered.mean()),
    ]


def _nearest_ours(query: np.ndarray, reference: np.ndarray) -> list[float]:
    from fedsynth.evaluation import nearest_neighbors

    distance = nearest_neighbors(query, reference).distance
    return [float(distance.mean()), float(distance.min())]


def _nearest_sklearn(query: np.ndarray, reference: np.ndarray) -> list[float]:
    from sklearn.metrics import pairwise_distances_argmin_min

    distance = pairwise_distances_argmin_min(query, reference)[1]
    return [float(distance.mean(dtype=np.float64)), float(distance.min())]


def _within_ours(points: np.ndarray, _: np.ndarray) -> list[float]:
    from fedsynth.evaluation import nearest_neighbors

    distance = nearest_neighbors(points, num_neighbors=5).distance[:, -1]
    return [float(distance.mean()), float(distance.min())]


def _within_sklearn(points: np.ndarray, _: np.ndarray) -> list[float]:
    from sklearn.neighbors import NearestNeighbors

    distance = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(points).kneighbors()[0][:, -1]
    return [float(distance.mean(dtype=np.float64)), float(distance.min())]


#: task -> (points in the first and second set, contender -> function); ours comes first.
TASKS: dict[str, tuple[tuple[int, int], dict[str, Contender]]] = {
    "PRDC, k=5, 5k x 5k": ((5_000, 5_000), {"fedsynth": _prdc_ours, "prdc": _prdc_package}),
    "PRDC, k=5, 10k x 5k": ((10_000, 5_000), {"fedsynth": _prdc_ours, "prdc": _prdc_package}),
    "nearest, 5k x 5k": ((5_000, 5_000), {"fedsynth": _nearest_ours, "scikit-learn": _nearest_sklearn}),
    "nearest, 100k x 5k": ((100_000, 5_000), {"fedsynth": _nearest_ours, "scikit-learn": _nearest_sklearn}),
    "5 nearest within 20k": ((20_000, 1), {"fedsynth": _within_ours, "scikit-learn": _within_sklearn}),
}
LARGE = {
    "PRDC, k=5, 100k x 5k": ((100_000, 5_000), {"fedsynth": _prdc_ours, "scikit-learn": _prdc_sklearn}),
}
ALL = TASKS | LARGE


def _added_bytes(task: str, contender: str) -> int:
    """Peak memory of one call, in a process of its own."""
    command = [sys.executable, __file__, "--memory", task, contender]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def _print_added_bytes(task: str, contender: str) -> None:
    def peak() -> int:
        # Not getrusage: its maximum is inherited from the parent process.
        status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return 1024 * int(status["VmHWM"].split()[0])

    sizes, contenders = ALL[task]
    contenders[contender](_points(64, 2), _points(64, 3))  # imports and thread pools
    first, second = _points(sizes[0], 0), _points(sizes[1], 1)
    before = peak()
    contenders[contender](first, second)
    print(json.dumps(peak() - before))


def _rows(task: str, repeats: int) -> list[list[str]]:
    """Table rows of one task."""
    sizes, contenders = ALL[task]
    first, second = _points(sizes[0], 0), _points(sizes[1], 1)
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    values = {}
    for run in contenders.values():
        run(_points(64, 2), _points(64, 3))
    for _ in range(repeats):
        for name, run in contenders.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            values[name] = run(first, second)
            cpu[name].append(time.process_time() - cpu_start)
            wall[name].append(time.perf_counter() - start)
    ours = next(iter(contenders))
    return [
        [
            task,
            name,
            f"{statistics.median(wall[name]):.3f}",
            f"{statistics.median(cpu[name]):.3f}",
            f"{statistics.median(c / o for c, o in zip(cpu[name], cpu[ours], strict=True)):.2f}",
            f"{_added_bytes(task, name) / 1e6:.0f}",
            f"{np.abs(np.subtract(values[name], values[ours])).max():.0e}",
        ]
        for name in contenders
    ]


def main() -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contender")
    parser.add_argument("--large", action="store_true", help="100,000 points against 5,000 as well")
    options = parser.parse_args()
    table = Table("task", "contender", "seconds", "CPU s", "CPU / ours", "peak MB", "largest difference")
    for task in ALL if options.large else TASKS:
        for row in _rows(task, options.repeats if task in TASKS else max(1, options.repeats // 5)):
            table.add_row(*row)
    Console(width=110).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        _print_added_bytes(*sys.argv[2:4])
    else:
        main()
