"""What a second thread does to a training step of the slim DenseNet, in wall time.

The network and batch of `image_classifier=slim_densenet` on random images of 28 pixels: forward, backward, AdamW.
One and two threads take turns in one process; the ratio is the geometric mean over turns with a 95 % t-interval. Wall
time is what a second core is for: run it on a machine with two free ones.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/classifier_threads.py
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from fedsynth.models.densenet import slim_densenet
from paired_ratio import paired_ratio

BATCH_SIZE, SIDE, NUM_CLASSES = 64, 28, 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="training steps in a turn")
    options = parser.parse_args()
    torch.manual_seed(0)
    network = slim_densenet(NUM_CLASSES, growth_rate=16, block_config=(1, 3, 6), num_init_features=24)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2, fused=True)
    image = torch.rand(BATCH_SIZE, 1, SIDE, SIDE)
    label = torch.randint(0, NUM_CLASSES, (BATCH_SIZE,))

    def milliseconds(threads: int) -> float:
        """Wall time of a step."""
        torch.set_num_threads(threads)
        begin = time.perf_counter()
        for _ in range(options.steps):
            loss = torch.nn.functional.cross_entropy(network(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - begin) / options.steps * 1e3

    for threads in (1, 2):  # once unmeasured: allocations, kernels
        milliseconds(threads)
    found: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(options.turns):
        for threads in (1, 2) if turn % 2 else (2, 1):
            found[threads].append(milliseconds(threads))
    low, mean, high = paired_ratio(found[2], found[1])
    print(f"two threads / one: {mean:.2f} (95 % interval {low:.2f} to {high:.2f}) over {options.turns} turns")
    print(f"median step: {np.median(found[1]):.1f} ms with one thread, {np.median(found[2]):.1f} ms with two")


if __name__ == "__main__":
    main()
