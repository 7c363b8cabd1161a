"""The sections of results, in reading order. Each is a function of ``Material`` that may find nothing to say."""

from __future__ import annotations

from collections.abc import Callable

from fedsynth.report.section import Material, Section
from fedsynth.report.sections.ablation import ablation_section
from fedsynth.report.sections.attacks import membership_section
from fedsynth.report.sections.calibration import calibration_section
from fedsynth.report.sections.client_scaling import client_scaling_section
from fedsynth.report.sections.contrasts import contrast_section
from fedsynth.report.sections.encoders import encoder_section
from fedsynth.report.sections.failure import failure_section
from fedsynth.report.sections.federated_definitions import definitions_section
from fedsynth.report.sections.federated_systems import federated_section
from fedsynth.report.sections.fidelity import fidelity_section
from fedsynth.report.sections.latent_space import latent_section
from fedsynth.report.sections.prototype_leakage import leakage_section
from fedsynth.report.sections.pso_cross_validation import cross_validation_section
from fedsynth.report.sections.pso_images import image_section
from fedsynth.report.sections.pso_quality import image_quality_section
from fedsynth.report.sections.pso_reidentification import reidentification_section
from fedsynth.report.sections.pso_selection import selection_section
from fedsynth.report.sections.pso_singling_out import singling_out_section
from fedsynth.report.sections.pso_sites import site_matrix_section
from fedsynth.report.sections.pso_utility import image_utility_section
from fedsynth.report.sections.signal import signal_section
from fedsynth.report.sections.system_contrasts import system_contrast_section
from fedsynth.report.sections.utility import utility_section
from fedsynth.report.stored import NotRunError

SECTIONS: tuple[tuple[str, Callable[[Material], Section | None]], ...] = (
    ("Federated systems", federated_section),
    ("FedMPA, part by part", ablation_section),
    ("Contrasts of federated systems", system_contrast_section),
    ("Number of clients", client_scaling_section),
    ("Leakage of prototypes", leakage_section),
    ("What the federated tables measure", definitions_section),
    ("Utility of synthetic images", image_utility_section),
    ("Synthetic images", image_section),
    ("Several sites and data sharing", site_matrix_section),
    ("Identity filter and selection", selection_section),
    ("Diversity and fidelity of synthetic images", image_quality_section),
    ("Singling out and re-identification: what was tested", singling_out_section),
    ("Re-identification network", reidentification_section),
    ("Cross-validation over methods", cross_validation_section),
    ("Encoder systems", encoder_section),
    ("Train on synthetic, test on real", utility_section),
    ("Signal and noise", signal_section),
    ("Calibration and decisions", calibration_section),
    ("Contrasts", contrast_section),
    ("Membership attacks", membership_section),
    ("Fidelity and disclosure", fidelity_section),
    ("Latent space, gates and attention", latent_section),
    ("Failure analysis", failure_section),
)

#: Figures that only sections draw; a stale one of an earlier report is removed.
FIGURE_NAMES = frozenset(
    {
        "privacy_plane",
        "uar_by_round",
        "ablation",
        "client_scaling",
        "system_contrasts",
        "prototype_leakage",
        "encoder_systems",
        "utility_by_budget",
        "confusion",
        "contrasts",
        "attack_by_budget",
        "attack_law",
        "fidelity_negative",
        "fidelity_positive",
        "failure",
        "pso_utility",
        "pso_images_1",
        "pso_images_2",
        "pso_learning",
        "pso_verdicts",
        "pso_isolation",
        "pso_reidentification",
        "pso_ranks",
    }
)


def build_sections(material: Material) -> tuple[list[Section], list[str]]:
    """All sections with something to say, and a line for each that lacks a file it needs."""
    found, left_out = [], []
    for title, build in SECTIONS:
        try:
            section = build(material)
        except NotRunError as reason:
            left_out.append(f"{title}: left out, {reason}")
            continue
        if section is not None:
            found.append(section)
    return found, left_out
