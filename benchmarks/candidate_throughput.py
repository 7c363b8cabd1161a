"""What sampling candidates costs against the bare calls of the network that it makes.

The network of `image_network=cpu` (random weights: the time does not depend on them) and the sampler of
`image_sampler=cpu`: 8 steps of DPM-Solver++(2M). "draw" is the stage's own way: noise by row, conditions, guidance
bound, half precision, NaN check; "bare" calls the preconditioned network as often on ready tensors. Both take turns;
the ratio is the geometric mean over turns with a 95 % t-interval. CPU seconds. Run with one thread:

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/candidate_throughput.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fedsynth.diffusion.edm import EDMDenoiser
from fedsynth.diffusion.edm_samplers import SamplerSettings
from fedsynth.diffusion.lerp_guidance import GuidanceSettings
from fedsynth.models.image_denoiser import ImageDenoiser
from fedsynth.stages.synthesize_images.sampler import CandidateSampler
from paired_ratio import paired_ratio

LATENT_SHAPE, CONDITION_DIM, BATCH_SIZE = (4, 14, 14), 1280, 256
SAMPLER = SamplerSettings("dpmpp_2m", num_steps=8, sigma_min=0.06, sigma_max=80.0, rho=7.0)


def seconds_of(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def bare_calls(denoiser: EDMDenoiser, num_images: int) -> Callable[[], None]:
    """As many calls of the denoiser as sampling makes, with nothing around them."""
    x = torch.randn(BATCH_SIZE, *LATENT_SHAPE)
    condition = torch.nn.functional.normalize(torch.randn(BATCH_SIZE, CONDITION_DIM))
    sigmas = [torch.tensor(sigma) for sigma in SAMPLER.levels if sigma > 0]

    @torch.no_grad()
    def work() -> None:
        for _ in range(num_images // BATCH_SIZE):
            for sigma in sigmas:
                denoiser(x, sigma, condition)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--sources", type=int, default=32, help="images that get 32 candidates in a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    denoiser = (
        EDMDenoiser(ImageDenoiser(condition_dim=CONDITION_DIM)).eval().to(memory_format=torch.channels_last)
    )
    condition = torch.nn.functional.normalize(torch.randn(options.sources, CONDITION_DIM))
    sampler = CandidateSampler(
        denoiser, None, condition, SAMPLER, GuidanceSettings("none", 1.0), LATENT_SHAPE,
        seed=0, batch_size=BATCH_SIZE, key="image_sampler.batch_size",
    )  # fmt: skip
    rows, num_images = torch.arange(options.sources), options.sources * 32
    bare = bare_calls(denoiser, num_images)
    seconds_of(bare)  # once unmeasured: allocations, kernels
    draws, calls = [], []
    for turn in range(options.turns):
        order = ("draw", "bare") if turn % 2 else ("bare", "draw")
        for what in order:
            if what == "draw":
                draws.append(seconds_of(lambda: sampler.draw(rows, 32, 1.0)))
            else:
                calls.append(seconds_of(bare))
    low, mean, high = paired_ratio(draws, calls)
    print(f"draw / bare: {mean:.3f} (95 % interval {low:.3f} to {high:.3f}) over {len(draws)} turns")
    print(
        f"images per CPU second: draw {num_images / np.median(draws):.0f}, bare {num_images / np.median(calls):.0f}"
    )


if __name__ == "__main__":
    main()
