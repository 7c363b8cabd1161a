"""Which stages leave a set of labelled images (``images.safetensors``). Needs no torch."""

from __future__ import annotations

#: Real images with patients, in the splits train, val and test.
REAL_IMAGES = ("xray_images",)
#: Images made of training images, in the split train only. ``train.source`` names the origin of each, to clients and
#: auditors; of a union of sites nobody is told.
MADE_IMAGES = ("vae_reconstruction", "select_images", "data_sharing")
#: Some of the real training images, in the split train only.
SOURCE_IMAGES = ("source_images",)
#: Anything a classifier can be trained on.
IMAGE_SETS = REAL_IMAGES + MADE_IMAGES + SOURCE_IMAGES

#: How labels are coded: one class a record, or a vector of 0 and 1.
MULTICLASS, MULTILABEL = "multiclass", "multilabel"
TASKS = (MULTICLASS, MULTILABEL)
#: Stages whose ``features.safetensors`` a generator can be conditioned on.
CONDITION_FEATURES = ("pseudo_features", "joined_features")
