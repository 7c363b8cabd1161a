"""Test the classifiers of one training set on the test images of another site."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedsynth.errors import DataError
from fedsynth.evaluation.macro_auroc import both_kinds
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.site_test.spec import SiteTestSettings
from fedsynth.stages.tstr_densenet.fitting import images_digest
from fedsynth.stages.tstr_densenet.run import SCORES
from fedsynth.stages.tstr_densenet.scoring import patients, test_metrics, viewed_probability
from fedsynth.stages.tstr_densenet.trained import open_densenet


def run(settings: SiteTestSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``test/auroc``, ``test/auroc/<class>`` and ``test/accuracy`` of every seed of the classifier, as it states them
    of its own site (PSO-secure sharing, Table 2): same views, same bootstrap over patients.

    ``scores.safetensors`` holds ``test.probability_by_seed`` [seed, n, k], ``test.label`` and ``test.patient``. Of a
    made training set it is not known whose images it was made of: that those are no test patients is up to the stages
    of real images, which divide the sites of one data set by one ``site_seed``.

    Raises:
        DataError: Images of other classes, task or size than the classifier was trained on, or of patients that it
            was trained on.
    """
    artifact, test = inputs["classifier"], read_image_set(inputs["images"], "test")
    trained_as = artifact.manifest["settings"]
    _check_fits(artifact, test, inputs["images"].stage)
    _check_unseen(artifact, test, inputs["images"].stage)
    seeds, rows = trained_as["seeds"], []
    for seed in seeds:
        trained = open_densenet(artifact, computing_device(context), seed)
        rows.append(viewed_probability(
            trained, test, test_views=trained_as["test_views"], resize_size=trained_as["resize_size"],
            batch_size=settings.evaluation_batch_size, context=context,
        ))  # fmt: skip
    probability = torch.stack(rows)
    metrics, undefined = test_metrics(
        probability, test, arm=settings.arm, seeds=seeds, num_bootstrap=settings.num_bootstrap
    )
    tensors = {"probability_by_seed": probability, "label": test.label, "patient": patients(test)}
    context.save(SCORES, {f"test.{name}": tensor for name, tensor in tensors.items()})
    defined = both_kinds(test.targets())
    notes = {
        "task": test.task,
        "classes": list(test.classes),
        "site": inputs["images"].manifest["notes"].get("site"),
        "test_counts": test.counts(),
        "test_sha256": images_digest(test),
        "classes_without_auroc": [name for name, ok in zip(test.classes, defined, strict=True) if not ok],
        "num_undefined_replicates": undefined,
    }
    return Outcome(metrics=metrics, notes=notes)


def _check_fits(classifier: Artifact, test: ImageSet, name: str) -> None:
    """A convolutional network would answer images of any size, and a wrong order of classes would go unnoticed."""
    notes = classifier.manifest["notes"]
    for what, mine, theirs in (
        ("classes", list(test.classes), list(notes["classes"])),
        ("task", test.task, notes["task"]),
        ("image shape", list(test.image.shape[1:]), list(notes["image_shape"])),
    ):
        if mine != theirs:
            raise DataError(
                f"stages.{classifier.stage} cannot be tested on stages.{name}: the {what} of its test images is {mine}, "
                f"the classifier was trained with {theirs}. Sites that are compared must agree on classes and size."
            )


def _check_unseen(classifier: Artifact, test: ImageSet, name: str) -> None:
    trained_on = classifier.load(SCORES).get("train.patient")
    if trained_on is None or test.patient is None:
        return
    both = test.patient.unique()
    both = both[torch.isin(both, trained_on)]
    if len(both):
        raise DataError(
            f"stages.{classifier.stage} was trained on {len(both)} of the test patients of stages.{name}. Sites of one "
            "data set need the same site_seed, num_sites and site_shares; split_seed too, where one holds all sites."
        )
