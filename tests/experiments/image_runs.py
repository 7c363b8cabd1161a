"""Words that make a run on labelled images as small as it can be, and files of such images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

#: Sizes that change no path through the code; one thread, where results repeat exactly.
SMALL_IMAGES = (
    "trainer.num_threads=1", "data.image_size=16", "data.max_images=[120,40,60]", "image_encoder.image_size=32",
    "image_network.channels=16", "image_network.head_channels=16", "image_network.kimg=1",
    "image_network.batch_size=32", "image_network.ramp_kimg=0.1", "image_network.decay_kimg=1",
    "image_network.steps_per_epoch=10", "image_network.num_validation_images=8",
    "image_classifier.block_config=[2,2]", "image_classifier.growth_rate=8",
    "image_classifier.num_init_features=8", "image_classifier.batch_size=16",
    "image_classifier.steps_per_epoch=10", "image_classifier.max_epochs=2",
    "image_classifier.cross_validation_epochs=1", "image_classifier.seeds=[42]",
    # Two seconds that it takes to tell patients: a filter that recognizes nobody is refused.
    "reidentification.channels=[8,16]", "reidentification.embedding_dim=16", "reidentification.batch_size=32",
    "reidentification.learning_rate=5e-3", "reidentification.steps_per_epoch=40", "reidentification.max_epochs=5",
    "image_sampler.num_sources=24", "image_sampler.num_candidates=4", "image_sampler.num_steps=6",
    "image_sampler.shard_size=4", "evaluation.num_bootstrap=20",
)  # fmt: skip
#: Options of the groups that tell a run on two CPU cores from one on H100s.
CPU_GROUPS = (
    "data=kermany", "codec=unshuffle", "image_encoder=efficientnet_lite0", "image_network=cpu",
    "image_sampler=cpu", "image_classifier=slim_densenet", "reidentification=small", "selection=default",
)  # fmt: skip
H100_GROUPS = (
    "data=cxr_sites", "codec=sd_vae", "image_encoder=swav", "image_network=edm2_xs", "image_sampler=paper",
    "image_classifier=densenet121", "reidentification=resnet50", "selection=paper",
)  # fmt: skip

STORED = 64  # pixels


def write_children(
    folder: Path,
    classes: Sequence[str] = ("normal", "bacteria", "virus"),
    *,
    per_class: int = 40,
    images: int = 2,
) -> Path:
    """A file in the layout of Kermany's X-rays: so many children of each class with so many images each.

    A child has a coarse pattern, and each of its images noise: identity networks can learn whose an image is.
    """
    rng = np.random.default_rng(0)
    kinds = [kind for kind in classes for _ in range(per_class * images)]
    children = [number // images for _ in classes for number in range(per_class * images)]
    pattern = (
        rng.integers(40, 215, (children[-1] + 1, 4, 4))
        .repeat(STORED // 4, axis=1)
        .repeat(STORED // 4, axis=2)
    )
    noise = rng.integers(-40, 41, (len(kinds), STORED, STORED))
    (folder / "chest").mkdir(parents=True)
    np.savez_compressed(
        folder / "chest" / "kermany_pediatric_64.npz",
        images=(pattern[children] + noise).astype(np.uint8),
        etiology=np.array(kinds),
        patient_key=np.array([f"{kind}/person{child}" for kind, child in zip(kinds, children, strict=True)]),
        split=np.array(["test" if child % 5 == 0 else "train" for child in children]),
    )
    return folder
