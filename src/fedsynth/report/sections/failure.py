"""Where the classifier trained on synthetic latents fails, beside the one trained on real latents."""

from __future__ import annotations

import numpy as np

from fedsynth.report.detail_figures import score_scatter
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.section import Column, Material, Row, Section, comparison
from fedsynth.report.stored import NotRunError, read_arrays

SPREAD = (
    Column("P90 − P10 of scores", "score_range"),
    Column("logit, mean", "logit_mean"),
    Column("logit, SD", "logit_std"),
    Column("most frequent score", "top_value"),
    Column("records with it", "top_value_count", is_exact=True),
)
NEGATIVES = (
    Column("records", "count", is_exact=True),
    Column("mean score, synthetic", "mean_synthetic_score"),
    Column("mean score, real", "mean_real_score"),
    Column("gap", "gap"),
)
RELATIONS = (
    Column("with the centroid margin", "centroid_margin"),
    Column("with the share of positives among 25 real neighbors", "positive_share"),
)
FILE = "failure.safetensors"


def failure_section(material: Material) -> Section | None:
    """Score collapse, hard and borderline negatives, relation to the geometry of the real latents."""
    for stage in material.names("failure_analysis"):
        tables = [
            ("Scores of the real test positives.", "classifier trained on",
             [Row("real latents", stage, "positives_real"), Row("synthetic latents", stage, "positives_synthetic")],
             SPREAD),
            ("Negatives of the test split. Hard: the eighth with the largest score of the synthetic classifier over"
             " that of the real one. Borderline: between 20 and 80 % positives among the 25 nearest training latents.",
             "negatives",
             [Row("hard", stage, "hard_negatives"), Row("borderline", stage, "borderline_negatives")], NEGATIVES),
            ("Pearson correlation of the synthetic classifier's score. Centroid margin: distance to the mean of the"
             " real positives minus distance to that of the negatives, so a ranking classifier has a negative one.",
             "test records",
             [Row("all", stage, "correlation"), Row("negatives", stage, "correlation_negatives")], RELATIONS),
        ]  # fmt: skip
        parts = []
        for caption, heading, rows, columns in tables:
            found = comparison(material, heading, rows, columns)
            parts += [material.caption(caption), found] if found else []
        if parts:
            parts.insert(0, "Classifier seeds of a run are averaged. Descriptive: nothing here says why.")
            return Section("Failure analysis", "\n\n".join(parts), _figures(material, stage))
    return None


def _figures(material: Material, stage: str) -> tuple[ReportFigure, ...]:
    found = material.runs[0].stages.get(stage)
    if found is None or found.manifest is None:
        return ()
    names = ("test.label", "centroid_margin", "positive_share", "synthetic.probability", "hard_negatives")
    try:
        label, margin, share, probability, hard = read_arrays(found, FILE, *names)
    except NotRunError:
        return ()
    score = np.atleast_2d(probability)[0]
    highlighted = np.isin(np.arange(len(score)), np.atleast_2d(hard)[0])
    return (
        ReportFigure(
            "failure",
            "Scores and the geometry of the real latents",
            "Each dot is a real test record, scored by the first classifier trained on synthetic latents. A level"
            " band of dots means that the score no longer ranks." + material.first_run,
            score_scatter(
                {"centroid margin": margin, "share of positives among real neighbors": share},
                score,
                label,
                highlighted=highlighted,
                simulated=material.simulated,
            ),
        ),
    )
