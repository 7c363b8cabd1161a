"""How like the real test latents the synthetic ones are, class by class and by budget; how near to training ones."""

from __future__ import annotations

import math

from fedsynth.report.drawing import CLASS_NAMES
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.result_figures import Estimate, budget_curves
from fedsynth.report.section import Column, Material, Row, Section, comparison, reading_note
from fedsynth.report.sections.encoders import estimate

METRICS = (
    Column("precision", "precision"),
    Column("recall", "recall"),
    Column("density", "density"),
    Column("coverage", "coverage"),
    Column("Fréchet", "frechet_distance"),
    Column("RBF MMD²", "rbf_mmd"),
)
DISCLOSURE = (
    Column("median to training", "nn_median_train"),
    Column("median to held-out", "nn_median_held_out"),
    Column("mean to training", "nn_mean_train"),
    Column("mean to held-out", "nn_mean_held_out"),
    Column("ratio of means", "nn_ratio"),
    Column("near-duplicates", "near_duplicate_fraction"),
)
LIMIT = "real_train_"


def fidelity_section(material: Material) -> Section | None:
    """A table per class with the limit on top, the disclosure distances, curves where there are several budgets."""
    audits = audited(material)
    tables = []
    for name in CLASS_NAMES:
        found = comparison(material, f"{name} class", class_rows(material, audits, name), METRICS)
        tables += (
            [material.caption(f"{name.capitalize()} class, against real test latents."), found]
            if found
            else []
        )
    if not tables:
        return None
    parts = [
        "k = 5 nearest neighbors, Euclidean. *Precision*: share of synthetic latents inside the k-NN ball of a real"
        " test latent; *recall*: share of real test latents inside a ball of a synthetic one; *density*: balls of"
        " real latents a synthetic one lies in, over k; *coverage*: share of real balls that hold a synthetic"
        " latent. *Fréchet*: squared distance of Gaussian fits; *RBF MMD²*: unbiased, bandwidth = median real"
        " distance. **Real training latents** against the same test latents are the limit no generator need pass.",
        f"*{reading_note(material)}*",
        *tables,
    ]
    distances = [Row(label, name, "disclosure") for label, name in audits]
    disclosure = comparison(material, "synthetic latents", distances, DISCLOSURE)
    if disclosure:
        parts += [
            material.caption(
                "Distance of synthetic latents to the nearest training and held-out record. Near-duplicates: nearer"
                " than the 1st percentile of the training records' own leave-one-out distances. A ratio well below"
                " 1 would mean copies of training records."
            ),
            disclosure,
        ]
    figures = tuple(item for name in CLASS_NAMES if (item := _figure(material, audits, name)))
    return Section("Fidelity and disclosure", "\n\n".join(parts), figures, ("neighbor_distances",))


def audited(material: Material) -> list[tuple[str, str]]:
    """(title of the synthetic latents, audit stage), small ε first, no noise last."""
    found = []
    for name in material.names("audit"):
        branch = material.branch(name)
        label = branch.title if branch else name
        found.append(((branch.epsilon if branch and branch.epsilon else math.inf, name), label, name))
    return [(label, name) for _, label, name in sorted(found)]


def class_rows(material: Material, audits: list[tuple[str, str]], name: str) -> list[Row]:
    """The limit, then for each budget mixture samples and diffusion samples of one class."""
    rows = [Row("real training latents (limit)", audits[0][1], f"{LIMIT}{name}")] if audits else []
    for label, stage in audits:
        if "diffusion" in label:
            rows.append(Row(label.replace("diffusion", "mixture"), stage, f"mixture_{name}"))
        rows.append(Row(label, stage, name))
    return rows


def _figure(material: Material, audits: list[tuple[str, str]], name: str) -> ReportFigure | None:
    panels: dict[str, dict[str, dict[float, Estimate]]] = {}
    limits: dict[str, dict[str, float]] = {}
    for column in METRICS[:4]:
        lines: dict[str, dict[float, Estimate]] = {}
        for _, stage in audits:
            branch = material.branch(stage)
            if branch is None or branch.epsilon is None:
                continue
            paid = ", all paid" if branch.is_paid else ""
            for generator, arm in (("mixture", f"mixture_{name}"), ("diffusion", name)):
                record = material.get(stage, arm, column.metric)
                if record is not None and record.mean is not None:
                    item = estimate(material, Row("", stage, arm), column.metric)
                    lines.setdefault(generator + paid, {})[branch.epsilon] = item
        if max((len(line) for line in lines.values()), default=0) < 3:
            return None
        panels[column.title] = lines
        limit = material.get(audits[0][1], f"{LIMIT}{name}", column.metric)
        if limit is not None and limit.mean is not None:
            limits[column.title] = {"real training latents": limit.mean}
    return ReportFigure(
        f"fidelity_{name}",
        f"Fidelity by privacy budget, {name} class",
        "Dotted: what real training latents reach. Density may exceed 1.",
        budget_curves(
            panels, references=limits, title=f"Fidelity, {name} class", simulated=material.simulated
        ),
    )
