"""Membership attacks on the release, by budget and split, and on the encoder."""

from __future__ import annotations

import math

from fedsynth.report.gallery import ReportFigure
from fedsynth.report.glossary import arm_title
from fedsynth.report.result_figures import Estimate, budget_curves, inverse_noise_law
from fedsynth.report.section import Column, Material, Row, Section, comparison, reading_note
from fedsynth.report.sections.encoders import estimate

PRIVATE, NONPRIVATE = "membership_private", "membership_nonprivate"
SHIFT = "_test_shift"
ENCODER = "membership_encoder"
NOISE = "noise_std_over_sensitivity"
#: The attack of the plain name, then the adversary who knows most.
SUMMARY_METRICS = (
    Column("fair split", "attack_auroc"),
    Column("fair split, strongest", "strongest_attack_auroc"),
    Column("fair split, matched filter", "matched_filter/attack_auroc"),
    Column("fair split, second moments", "second_moment_filter/attack_auroc"),
    Column("members against test records", "attack_auroc", SHIFT),
    Column("σ / Δ", NOISE, is_exact=True),
)
ENCODER_METRICS = tuple(Column(name, f"{name}/attack_auroc") for name in ("loss", "confidence", "entropy"))


def membership_section(material: Material) -> Section | None:
    """Tables for release and encoder; AUROC by ε and the 1/σ law where there are several budgets."""
    audits = _audits(material)
    summary = comparison(material, "release", [row for _, row in audits], SUMMARY_METRICS)
    encoder = comparison(material, "encoder answers to", _encoder_rows(material), ENCODER_METRICS)
    if not summary and not encoder:
        return None
    parts = [
        "AUROC of an attack that scores records by what was published: 0.5 finds nothing. In the **fair split** a"
        " random half of every client and class is released and the other half are the non-members, so that"
        " nothing but membership tells them apart. **Members against test records** takes training records as"
        " members and test records as non-members: it also measures how the test split differs from the training"
        " split, which noise does not remove. The *strongest* adversary is named beforehand and also reads what is"
        " published without noise (counts, covariances); noisy *second moments*, where they are published, are"
        " attacked by a score of their own.",
    ]
    if summary:
        parts += [
            material.caption(
                "Attacks on released summaries, mean of the repetitions; an interval of a single run is the"
                " 2.5 to 97.5 % range over repetitions. " + reading_note(material)
            ),
            summary,
        ]
    law = _law(material, audits)
    if law is not None:
        parts.append(
            "**The 1/σ law.** A score that is linear in the noisy release has a score gap proportional to 1/σ,"
            " and so has d' = √2 Φ⁻¹(AUROC), the distance of members from non-members in standard deviations of"
            " the score. The score gap of a likelihood ratio falls as 1/σ², its d' as 1/σ too, once the noise outweighs"
            " what sampling half of the records does."
            f" {law[1]}"
        )
    if encoder:
        parts += [
            material.caption(
                "Attacks on the encoder's class probabilities (its updates and weights carry no guarantee)."
                " Confidence and entropy are monotone in each other for two classes, so they agree in every digit."
            ),
            encoder,
        ]
    figures = tuple(item for item in (_figure(material, audits), law[0] if law else None) if item)
    return Section("Membership attacks", "\n\n".join(parts), figures)


def _audits(material: Material) -> list[tuple[float, Row]]:
    """(ε, row) of every audited release, small ε first, then the release without noise once."""
    found: dict[float, Row] = {}
    for name in material.names("audit"):
        branch = material.branch(name)
        if branch is None or branch.epsilon is None or math.isinf(branch.epsilon) or branch.is_paid:
            continue
        found.setdefault(branch.epsilon, Row(branch.budget, name, PRIVATE))
    paid = [
        (branch.epsilon, Row(f"{branch.budget}, all paid", name, PRIVATE))
        for name in material.names("audit")
        if (branch := material.branch(name)) and branch.is_paid and branch.epsilon is not None
    ]
    rows = sorted(found.items()) + paid
    without = [name for name in material.names("audit") if material.get(name, NONPRIVATE, "attack_auroc")]
    return [*rows, (math.inf, Row("without noise", without[0], NONPRIVATE))] if without else rows


def _encoder_rows(material: Material) -> list[Row]:
    arms = [(record.stage, record.arm) for record in material.records if record.arm.startswith(ENCODER)]
    return [Row(arm_title(arm), stage, arm) for stage, arm in dict.fromkeys(arms)]


def _figure(material: Material, audits: list[tuple[float, Row]]) -> ReportFigure | None:
    lines: dict[str, dict[float, Estimate]] = {}
    for epsilon, row in audits:
        paid = ", all paid" if "all paid" in row.label else ""
        for column in (SUMMARY_METRICS[0], SUMMARY_METRICS[1], *(() if paid else SUMMARY_METRICS[4:5])):
            arm = row.arm + column.suffix
            record = material.get(row.stage, arm, column.metric)
            if record is not None and record.mean is not None:
                item = estimate(material, Row(row.label, row.stage, arm), column.metric)
                lines.setdefault(column.title + paid, {})[epsilon] = item
    if max((len(line) for line in lines.values()), default=0) < 3:
        return None
    return ReportFigure(
        "attack_by_budget",
        "Membership attack by privacy budget",
        "The fair split measures membership and nothing else; members against test records also measures how the"
        " splits differ. Diamonds: published values.",
        budget_curves(
            {"attack AUROC": lines},
            references={"attack AUROC": {"chance": 0.5}},
            title="Membership attack on the release",
            simulated=material.simulated,
        ),
    )


def _law(material: Material, audits: list[tuple[float, Row]]) -> tuple[ReportFigure, str] | None:
    """d' against 1/σ with the fitted line, and the fit in words; None with fewer than three noisy budgets."""
    points: dict[str, list[tuple[float, Estimate]]] = {}
    for epsilon, row in audits:
        sigma = material.get(row.stage, PRIVATE, NOISE)
        if math.isinf(epsilon) or "all paid" in row.label or sigma is None or not sigma.mean:
            continue
        for column in (SUMMARY_METRICS[0], SUMMARY_METRICS[2]):
            record = material.get(row.stage, row.arm, column.metric)
            if record is not None and record.mean is not None and 0 < record.mean < 1:
                points.setdefault(column.title, []).append(
                    (sigma.mean, _index(record.mean, record.ci_low, record.ci_high))
                )
            if record is not None and record.paper is not None and column.metric == "attack_auroc":
                points.setdefault("paper", []).append((sigma.mean, _index(record.paper)))
    points = {name: line for name, line in points.items() if len(line) >= 3}
    if not points:
        return None
    slopes = {name: _slope(line) for name, line in points.items()}
    fitted = "; ".join(f"{name}: a = {slope:.4f}" for name, slope in slopes.items())
    figure = ReportFigure(
        "attack_law",
        "The 1/σ law",
        "Dashed: d' = a / σ, least squares through the origin. Points on the line: the attack is linear in what"
        " was released and weakens as the noise grows.",
        inverse_noise_law(points, slopes, y_label="d' = √2 Φ⁻¹(attack AUROC)", simulated=material.simulated),
    )
    return figure, f"Fitted d' = a / σ with σ in units of Δ: {fitted}."


def _index(auroc: float, low: float | None = None, high: float | None = None) -> Estimate:
    from fedsynth.attacks.noise_law import sensitivity_index

    inside = low is not None and high is not None and 0 < low <= high < 1
    bounds = (sensitivity_index(low), sensitivity_index(high)) if inside and low and high else (None, None)
    return Estimate(sensitivity_index(auroc), *bounds)


def _slope(line: list[tuple[float, Estimate]]) -> float:
    from fedsynth.attacks.noise_law import auroc_of_index, fit_inverse_noise

    noise = [sigma for sigma, _ in line]
    return fit_inverse_noise(noise, [auroc_of_index(item.mean) for _, item in line]).slope
