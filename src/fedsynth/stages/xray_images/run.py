"""Read a data set, take the patients of a site, divide them, resize their images."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import numpy as np
import torch

from fedsynth.data.cxr_sites.site import read_cxr_site
from fedsynth.data.cxr_sites.source import CXR_SITES
from fedsynth.data.source_files import DataSource
from fedsynth.data.xray.images import XrayImages
from fedsynth.data.xray.read import read_dataset
from fedsynth.data.xray.resize import resize_images
from fedsynth.data.xray.site_data import SiteData, SiteRequest, divide
from fedsynth.data.xray.source import DATASETS
from fedsynth.errors import FedSynthError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet
from fedsynth.stages.image_set_kinds import MULTILABEL
from fedsynth.stages.xray_images.spec import XrayImagesSettings

logger = logging.getLogger(__name__)

# Patients of two data sets never share a number.
PATIENTS_OF_A_DATASET = 10**7


def run(settings: XrayImagesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Images of the three splits, and in the notes how many of which class and of how many patients.

    Raises:
        DataError: If the file has faults, a class is missing at a site or in a split, or a patient is on both sides of
            the publisher's split.
        ConfigError: If the settings do not fit the file.
    """
    source = context.sources["xray"].datasets[settings.dataset]
    if settings.dataset in CXR_SITES:
        return _run_cxr(settings, source, context)
    try:
        images = read_dataset(settings.dataset, source, labels=settings.labels)
        people = np.unique(
            images.patient_key
        )  # of the whole set: a number means the same person at every site
        if settings.single_label_only:
            images = images.single_label_only()
        if settings.classes is not None:
            images = images.only_classes(settings.classes)
        site = divide(images, _request(settings))
        stored_size = images.image.shape[-1]
        sets = {split: _image_set(images.rows(rows), people, settings) for split, rows in site.rows.items()}
    except FedSynthError as error:
        given = ", ".join(
            f"{key}={getattr(settings, key)}"
            for key in ("dataset", "image_size", "labels", "split", "site", "num_sites")
        )
        raise type(error)(f"{error} (From stages.{context.name}, where {given}.)") from error
    _warn_of_few_pairs(site, context.name)
    tensors = {
        key: value
        for split, images_set in sets.items()
        for key, value in images_set.to_tensors(split).items()
    }
    context.save(IMAGES_FILE, tensors)
    notes = {
        **sets["train"].describe(),
        "dataset": settings.dataset,
        "simulated": source.simulated,
        "site": settings.site,
        "num_sites": settings.num_sites,
        "stored_size": stored_size,
        **site.report,
    }
    return Outcome(notes=notes)


def _run_cxr(settings: XrayImagesSettings, source: DataSource, context: StageContext) -> Outcome:
    """The same of a licensed corpus, which is opened image by image and is a site of its own."""
    site = read_cxr_site(
        settings.dataset,
        source.path,
        image_size=settings.image_size,
        split_fractions=settings.split_fractions,
        split_seed=settings.split_seed,
        max_images=settings.max_images,
        cache_dir=source.cache_dir,
        num_workers=min(8, os.cpu_count() or 1),
    )
    sets = {
        split: ImageSet(
            image=torch.from_numpy(images.image),
            label=torch.from_numpy(images.label),
            classes=images.classes,
            task=MULTILABEL,
            patient=torch.from_numpy(images.patient),
        )
        for split, images in site.splits.items()
    }
    tensors: dict[str, torch.Tensor] = {}
    for split, images_set in sets.items():
        tensors |= images_set.to_tensors(split)
    context.save(IMAGES_FILE, tensors)
    notes = {
        **sets["train"].describe(),
        "dataset": settings.dataset,
        "simulated": False,
        "site": None,
        "num_sites": 1,
    }
    return Outcome(notes={**notes, **site.report})


def _request(settings: XrayImagesSettings) -> SiteRequest:
    return SiteRequest(
        site=settings.site,
        num_sites=settings.num_sites,
        site_shares=settings.site_shares,
        dirichlet_alpha=settings.dirichlet_alpha,
        min_patients=settings.min_patients,
        site_seed=settings.site_seed,
        split=settings.split,
        split_fractions=settings.split_fractions,
        split_seed=settings.split_seed,
        max_images=settings.max_images,
    )


def _image_set(taken: XrayImages, people: np.ndarray, settings: XrayImagesSettings) -> ImageSet:
    resized = resize_images(taken.image, settings.image_size, allow_upsampling=settings.allow_upsampling)
    offset = DATASETS[settings.dataset].number * PATIENTS_OF_A_DATASET
    return ImageSet(
        image=torch.from_numpy(resized).unsqueeze(1),
        label=torch.from_numpy(taken.label()),
        classes=taken.classes,
        task=taken.task,
        patient=torch.from_numpy(np.searchsorted(people, taken.patient_key) + offset),
    )


def _warn_of_few_pairs(site: SiteData, stage: str) -> None:
    """Identity networks learn from two images of a person; whoever needs them refuses, here it is only said."""
    for split, counts in site.report["splits"].items():
        if counts["patients_with_several_images"] == 0:
            logger.warning(
                "stages.%s: each of the %d patients of %s has one image only; no identity network can learn from them.",
                *(stage, counts["patients"], split),
            )
    if site.report["identical_groups_of_several_patients"]:
        logger.warning(
            "stages.%s: %d groups of identical images belong to several patients; their keys may name one person twice.",
            *(stage, site.report["identical_groups_of_several_patients"]),
        )
