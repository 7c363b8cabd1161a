"""Sections of results: each from numbers made by hand, left out without them, honest about the paper."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsynth.report.records import ReportRecord
from fedsynth.report.runs import Run, StageResult
from fedsynth.report.section import Column, Material, Row, comparison
from fedsynth.report.sections import FIGURE_NAMES, SECTIONS, build_sections
from fedsynth.report.sections.attacks import membership_section
from fedsynth.report.sections.calibration import calibration_section
from fedsynth.report.sections.contrasts import contrast_section
from fedsynth.report.sections.encoders import encoder_section
from fedsynth.report.sections.failure import failure_section
from fedsynth.report.sections.fidelity import fidelity_section
from fedsynth.report.sections.latent_space import latent_section
from fedsynth.report.sections.signal import signal_section
from fedsynth.report.sections.utility import utility_section

BUDGETS = {"": 4.0, "_eps1": 1.0, "_eps2": 2.0, "_nonprivate": math.inf}


def record(stage, arm, metric, mean, low=None, high=None, std=None, paper=None, **extra):
    return ReportRecord(stage, arm, metric, mean, std, low, high, 3, paper, **extra)


def chain(suffix: str, epsilon: float) -> dict:
    """The stages from a release to its audit."""
    return {
        f"release{suffix}": {"stage": "release", "epsilon": epsilon},
        f"mix{suffix}": {"stage": "mix", "inputs": {"release": f"release{suffix}"}},
        f"latent_ddpm{suffix}": {"stage": "latent_ddpm", "inputs": {"mixture": f"mix{suffix}"}},
        f"synthesize{suffix}": {"stage": "synthesize", "inputs": {"denoiser": f"latent_ddpm{suffix}"}},
        f"tstr_diffusion{suffix}": {"stage": "tstr_mlp", "inputs": {"train": f"synthesize{suffix}"}},
        f"audit{suffix}": {"stage": "audit", "inputs": {"synthetic": f"synthesize{suffix}"}},
    }


def made_run(
    stages: dict, metrics: dict[str, list[dict]], folder: Path = Path("nowhere"), seed: int = 42
) -> Run:
    results = {
        name: StageResult(
            name, config["stage"], "k", folder / name, "computed", 1.0, "private", "auditor",
            {"metrics": metrics.get(name, [])},
        )
        for name, config in stages.items()
    }  # fmt: skip
    info = {"experiment": "e", "run_id": f"r{seed}", "seed": seed, "config": {"stages": stages}, "stages": {}}
    return Run(folder, info, results)


def material(
    stages: dict, records: list[ReportRecord], folder: Path = Path("nowhere"), num_runs: int = 1
) -> Material:
    metrics: dict[str, list[dict]] = {}
    for one in records:
        row = {
            "arm": one.arm,
            "metric": one.metric,
            "value": one.mean,
            "ci_low": one.ci_low,
            "ci_high": one.ci_high,
        }
        metrics.setdefault(one.stage, []).append({**row, "seed": 42})
    runs = tuple(made_run(stages, metrics, folder, 42 + index) for index in range(num_runs))
    return Material(runs, tuple(records))


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_comparison_shows_ours_interval_paper_difference_and_whether_it_is_outside():
    found = material(
        {},
        [
            record("s", "a", "m", 0.5, 0.4, 0.6, 0.05, paper=0.55, paper_std=0.01),
            record("s", "b", "m", 0.5, 0.4, 0.6, paper=0.7),
        ],
    )
    rows = [Row("first", "s", "a"), Row("second", "s", "b"), Row("absent", "s", "c")]
    lines = comparison(found, "system", rows, [Column("M", "m"), Column("N", "n")]).splitlines()
    assert lines[0] == "| system | M |"  # a column without a number is left out
    assert lines[2:] == [
        "| first | **0.5000 ± 0.0500** |",
        "| 95 % CI | [0.4000, 0.6000] |",
        "| *paper* | 0.5500 ± 0.0100 |",
        "| *ours \N{MINUS SIGN} paper* | \N{MINUS SIGN}0.0500 |",
        "| second | **0.5000** |",
        "| 95 % CI | [0.4000, 0.6000] |",
        "| *paper* | 0.7000 |",
        "| *ours \N{MINUS SIGN} paper* | \N{MINUS SIGN}0.2000 ● |",
    ]


def test_counts_have_no_decimals_and_columns_can_add_to_the_arm():
    found = material({}, [record("s", "a", "n", 29.0, 20.0, 40.0), record("s", "a_x", "n", 0.5)])
    text = comparison(
        found, "x", [Row("r", "s", "a")], [Column("N", "n", is_exact=True), Column("X", "n", "_x")]
    )
    assert "| r | **29** | **0.5000** |" in text
    assert "[20" not in text
    assert comparison(found, "x", [Row("r", "s", "none")], [Column("N", "n")]) == ""


def test_without_numbers_there_are_no_sections():
    assert build_sections(material({}, [])) == ([], [])


def encoder_material(num_runs: int) -> Material:
    stages = {"fusion_encoder": {"stage": "fusion_encoder"}, "fusion_image_only": {"stage": "fusion_encoder"}}
    arms = [("fusion_encoder", "both"), ("fusion_encoder", "image_only"), ("fusion_image_only", "image_only")]
    return material(stages, [record(s, a, "test/auroc", 0.9, 0.8, 1.05) for s, a in arms], num_runs=num_runs)


def test_encoder_systems_are_compared_by_their_own_modalities_and_masks_apart():
    section = encoder_section(encoder_material(2))
    assert section is not None
    systems, seeds, masks = (part for part in section.text.split("\n\n") if part.startswith("|"))
    assert "federated encoder, X-ray only" in systems
    assert "ours, seed 43" in seeds
    assert "X-ray only [1, 0]" in masks
    assert "ECG only" not in masks
    assert [item.name for item in section.figures] == ["encoder_systems"]
    single = encoder_section(encoder_material(1))
    assert single is not None
    assert "seed by seed" not in single.text


def audit_records(name: str, epsilon: float) -> list[ReportRecord]:
    found = [
        record(name, arm, metric, 0.25)
        for arm in ("negative", "mixture_negative", "real_train_negative")
        for metric in ("precision", "recall", "density", "coverage", "mean_gap")
    ]
    arm = "membership_nonprivate" if math.isinf(epsilon) else "membership_private"
    auroc = 0.5 + 0.01 * min(epsilon, 8)
    found += [record(name, arm, "attack_auroc", auroc, auroc - 0.02, auroc + 0.02)]
    found += [
        record(name, f"{arm}_test_shift", "attack_auroc", 0.65),
        record(name, "disclosure", "nn_ratio", 1.0),
    ]
    if math.isfinite(epsilon):
        found.append(record(name, arm, "noise_std_over_sensitivity", 4 / epsilon))
    return found


def budget_material() -> Material:
    stages = {
        "encode": {"stage": "encode"},
        "tstr_real": {"stage": "tstr_mlp", "inputs": {"train": "encode"}},
    }
    records = [record("tstr_real", "real", "test/auroc", 0.98)]
    for suffix, epsilon in BUDGETS.items():
        stages |= chain(suffix, epsilon)
        records += [record(f"tstr_diffusion{suffix}", "dp_diffusion", "test/auroc", 0.9, 0.88, 0.92)]
        records += audit_records(f"audit{suffix}", epsilon)
    stages["synthesize_primary"] = {
        "stage": "synthesize",
        "inputs": {"denoiser": "latent_ddpm", "validation": "encode"},
    }
    stages["tstr_diffusion_primary"] = {"stage": "tstr_mlp", "inputs": {"train": "synthesize_primary"}}
    records.append(record("tstr_diffusion_primary", "dp_diffusion", "test/auroc", 0.91))
    return material(stages, records)


def test_utility_lists_the_ceiling_then_budgets_in_order_and_keeps_the_primary_protocol_apart():
    section = utility_section(budget_material())
    assert section is not None
    standardized, primary = (plain(part) for part in section.text.split("\n\n") if part.startswith("|"))
    names = [line.split("|")[1].strip() for line in standardized.splitlines()[2:] if "CI" not in line]
    assert names == [
        "real latents", "DP diffusion, ε = 1", "DP diffusion, ε = 2", "DP diffusion, ε = 4",
        "non-private diffusion, ε = ∞",
    ]  # fmt: skip
    assert "DP diffusion, ε = 4 (selected snapshot)" in primary
    assert [item.name for item in section.figures] == ["utility_by_budget"]


def test_attacks_stand_beside_each_other_by_budget_with_the_test_shift_and_the_law():
    section = membership_section(budget_material())
    assert section is not None
    (summary,) = [plain(part) for part in section.text.split("\n\n") if part.startswith("|")]
    assert [line.split("|")[1].strip() for line in summary.splitlines()[2:] if "CI" not in line] == [
        "ε = 1", "ε = 2", "ε = 4", "without noise",
    ]  # fmt: skip
    assert "members against test records" in summary
    assert {item.name for item in section.figures} == {"attack_by_budget", "attack_law"}
    # d' = sqrt(2) Phi^-1(.5 + .01 ε) ≈ .0354 ε and σ = 4 / ε, so a = d' σ ≈ .142.
    slope = float(re.search(r"a = (\d\.\d+)", section.text)[1])  # type: ignore[index]
    assert slope == pytest.approx(0.142, abs=0.001)


def test_one_budget_draws_no_curve():
    stages = chain("", 4.0)
    section = membership_section(material(stages, audit_records("audit", 4.0)))
    assert section is not None
    assert section.figures == ()
    assert "1/σ law" not in section.text


def test_fidelity_has_the_limit_on_top_of_each_class():
    section = fidelity_section(budget_material())
    assert section is not None
    table, disclosure = (plain(part) for part in section.text.split("\n\n") if part.startswith("|"))
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names[:3] == ["real training latents (limit)", "DP mixture, ε = 1", "DP diffusion, ε = 1"]
    assert "ratio of means" in disclosure
    # Only the negative class was measured.
    assert [item.name for item in section.figures] == ["fidelity_negative"]


def test_signal_and_noise_are_shown_by_budget_and_by_client():
    stages = chain("_eps1", 1.0) | chain("", 4.0)
    records = [
        record(name, "signal_to_noise", "shard_snr_min", value)
        for name, value in (("audit", 2.0), ("audit_eps1", 0.5))
    ]
    found = material(stages, records)
    cell = {
        "client": 3, "label": 1, "records": 40, "shards": 4, "smallest_shard": 10, "noise_norm": 2.0,
        "class_distance": 5.0, "shard_snr": 2.5, "cell_snr": None,
    }  # fmt: skip
    manifest = found.runs[0].stages["audit"].manifest
    assert manifest is not None
    manifest["notes"] = {"signal_to_noise": [cell]}
    section = signal_section(found)
    assert section is not None
    assert "| ε = 1 | **0.5000** |\n| ε = 4 | **2.0000** |" in plain(section.text)
    assert "| 3 | positive | 40 | 4 | 10 | 2.0000 | 5.0000 | 2.5000 | ∞ |" in section.text
    assert signal_section(material(stages, [])) is None


def test_latents_and_gates_have_a_row_per_class():
    gates = [
        record("fusion_encoder", "gates", f"{name}/gate_image", value)
        for name, value in (("negative", 0.25), ("positive", 0.75))
    ]
    section = latent_section(material({"fusion_encoder": {"stage": "fusion_encoder"}}, gates))
    assert section is not None
    assert "| negative | **0.2500** |\n| positive | **0.7500** |" in section.text


def test_contrasts_show_the_bootstrap_of_the_first_run_beside_the_interval_over_runs():
    stages = {"contrast_both_image": {"stage": "contrast"}}
    records = [
        record("contrast_both_image", "contrast", "difference/auroc", 0.03, 0.01, 0.05, 0.01),
        record("contrast_both_image", "contrast", "p_holm/auroc", 0.04),
    ]
    section = contrast_section(material(stages, records, num_runs=2))
    assert section is not None
    assert (
        "| both − X-ray only | AUROC | **0.0300 ± 0.0100** | [0.0100, 0.0500] | [0.0100, 0.0500] | 0.0400 |"
        in (section.text)
    )
    assert [item.name for item in section.figures] == ["contrasts"]


def test_decisions_are_counted_at_the_stored_threshold(tmp_path):
    stages = {
        "tstr_real": {"stage": "tstr_mlp", "inputs": {"train": "encode"}},
        "encode": {"stage": "encode"},
    }
    (tmp_path / "tstr_real").mkdir()
    arrays = {
        "test.label": np.array([0, 0, 0, 1, 1]),
        "test.probability": np.array([[0.1, 0.5, 0.6, 0.5, 0.4], [1.0] * 5]),
    }
    save_file(arrays, tmp_path / "tstr_real" / "scores.safetensors")
    records = [record("tstr_real", "real", name, 0.5) for name in ("test/auroc", "test/threshold")]
    section = calibration_section(material(stages, records, tmp_path))
    assert section is not None
    # Threshold .5 itself is positive; of two classifier seeds the first counts.
    assert "| real latents | 1 / 2 / 1 / 1 |" in section.text
    assert [item.name for item in section.figures] == ["confusion"]
    assert calibration_section(material(stages, records)) is None  # no scores stored


def test_temperature_scaling_stands_before_and_after():
    stages = {"temperature_encoder": {"stage": "temperature_scaling", "inputs": {"system": "fusion_encoder"}}}
    records = [
        record("temperature_encoder", arm, "test/brier", v) for arm, v in (("unscaled", 0.2), ("scaled", 0.1))
    ]
    section = calibration_section(material(stages, records))
    assert section is not None
    assert (
        "| federated encoder, as trained | **0.2000** |\n| federated encoder, scaled | **0.1000** |"
        in section.text
    )


def test_failures_are_drawn_from_the_stored_records(tmp_path):
    stages = {"failure_analysis": {"stage": "failure_analysis"}}
    records = [record("failure_analysis", "hard_negatives", "count", 1.0)]
    (tmp_path / "failure_analysis").mkdir()
    score = np.linspace(0, 1, 6)
    arrays = {
        "test.label": np.array([0, 1] * 3), "centroid_margin": score, "positive_share": score,
        "synthetic.probability": score[None], "hard_negatives": np.array([[2]]),
    }  # fmt: skip
    save_file(arrays, tmp_path / "failure_analysis" / "failure.safetensors")
    section = failure_section(material(stages, records, tmp_path))
    assert section is not None
    assert [item.name for item in section.figures] == ["failure"]
    bare = failure_section(material(stages, records))
    assert bare is not None
    assert bare.figures == ()


def test_every_section_figure_is_known_so_that_a_stale_one_is_removed():
    found, left_out = build_sections(budget_material())
    names = {item.name for section in found for item in section.figures}
    assert names
    assert names <= FIGURE_NAMES
    assert left_out == []
    assert len({title for title, _ in SECTIONS}) == len(SECTIONS)
