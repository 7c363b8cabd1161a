"""Latent norms and gaps, and what the gates and the attention of the encoder do."""

from __future__ import annotations

from fedsynth.report.drawing import CLASS_NAMES
from fedsynth.report.section import Column, Material, Row, Section, comparison
from fedsynth.report.sections.fidelity import audited, class_rows

NORMS = (
    Column("gap of class means", "mean_gap"),
    Column("mean norm, real", "real_mean_norm"),
    Column("mean norm, these latents", "synthetic_mean_norm"),
)
GATES = (
    Column("gate, X-ray", "gate_image"),
    Column("gate, ECG", "gate_ecg"),
    Column("X-ray → X-ray", "attention_image_to_image"),
    Column("X-ray → ECG", "attention_image_to_ecg"),
    Column("ECG → X-ray", "attention_ecg_to_image"),
    Column("ECG → ECG", "attention_ecg_to_ecg"),
)
GATE_ARM = "gates"


def latent_section(material: Material) -> Section | None:
    """Norms by class and budget, gates by class; the picture of the latents."""
    parts = []
    audits = audited(material)
    for name in CLASS_NAMES:
        found = comparison(material, f"{name} class", class_rows(material, audits, name), NORMS)
        if found:
            parts += [
                material.caption(
                    f"{name.capitalize()} class: ‖mean real − mean synthetic‖ and mean Euclidean norms, against"
                    " real test latents."
                ),
                found,
            ]
    gates = _gates(material)
    if gates:
        parts += [
            material.caption(
                "Gates (Eq. 14: 1 takes the attention output, 0 the token itself) and head-averaged attention"
                " (Eq. 13: from the token on the left of the arrow to the token on its right; two entries of a"
                " token sum to 1), class means over test records with both modalities."
            ),
            gates,
        ]
    if not parts:
        return None
    return Section("Latent space, gates and attention", "\n\n".join(parts), (), ("latent_pca",))


def _gates(material: Material) -> str:
    """One row per class; metrics are called ``negative/gate_image``."""
    tables = []
    for stage in material.names("fusion_encoder"):
        if not any(record.stage == stage and record.arm == GATE_ARM for record in material.records):
            continue
        if stage != "fusion_encoder":
            continue
        for name in CLASS_NAMES:
            columns = [Column(column.title, f"{name}/{column.metric}") for column in GATES]
            tables.append(comparison(material, "class", [Row(name, stage, GATE_ARM)], columns))
    # The two tables have one header.
    head, *rest = [text for text in tables if text] or [""]
    return "\n".join([head, *("\n".join(text.splitlines()[2:]) for text in rest)]) if head else ""
