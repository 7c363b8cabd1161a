"""FedDP-PALD's own numbers, recomputed by the project's metrics from the confusion matrices behind them."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from fedsynth.attacks import SummaryAttack, paired_change, spread
from fedsynth.evaluation import balanced_accuracy_threshold, classification_metrics

#: Printed to four decimals.
ROUNDING = 0.5e-4 + 1e-12
#: Noise multipliers σ/Δ of the analytic Gaussian mechanism at δ = 1e-5.
NOISE_MULTIPLIER = {8: 0.6002290722, 4: 1.0811618495, 2: 1.9938124456, 1: 3.7306316348}
ATTACK_AUROC = {8: 0.5093, 4: 0.5068, 2: 0.5029, 1: 0.5016, math.inf: 0.6229}
SCORE_GAP = {8: 47.0571, 4: 30.3635, 2: 15.1606, 1: 8.1640}


def _metrics(tn: int, fp: int, fn: int, tp: int) -> dict[str, float]:
    """Metrics of probabilities on either side of a threshold that produce this confusion matrix."""
    probability = torch.cat(
        [torch.full((tn,), 0.1), torch.full((fp,), 0.9), torch.full((fn,), 0.1), torch.full((tp,), 0.9)]
    )
    target = torch.cat([torch.zeros(tn + fp), torch.ones(fn + tp)])
    metrics = classification_metrics(probability, target, 0.7359)
    assert (metrics["tn"], metrics["fp"], metrics["fn"], metrics["tp"]) == (tn, fp, fn, tp)
    return metrics


@pytest.mark.parametrize(
    ("confusion", "printed"),
    [
        pytest.param(
            (147, 87, 0, 390),
            {
                "f1": 0.8997,
                "mcc": 0.7167,
                "balanced_accuracy": 0.8141,
                "specificity": 0.6282,
                "precision": 0.8176,
                "accuracy": 0.8606,
                "sensitivity": 1.0,
                "npv": 1.0,
            },
            id="federated test, seed 42",
        ),
        pytest.param(
            (146, 88, 0, 390),
            {
                "accuracy": 0.8590,
                "precision": 0.8159,
                "sensitivity": 1.0,
                "specificity": 0.6239,
                "f1": 0.8986,
                "balanced_accuracy": 0.8120,
            },
            id="diffusion TSTR, seed 42",
        ),
        pytest.param(
            (132, 3, 12, 377),
            {
                "accuracy": 0.9714,
                "f1": 0.9805,
                "balanced_accuracy": 0.9735,
                "sensitivity": 0.9692,
                "specificity": 0.9778,
            },
            id="validation",
        ),
        pytest.param((176, 58, 9, 381), {"balanced_accuracy": 0.8645, "f1": 0.9192}, id="image only"),
        pytest.param((130, 104, 25, 365), {"sensitivity": 0.9359, "f1": 0.8498}, id="ECG only"),
        pytest.param((178, 56, 10, 380), {"balanced_accuracy": 0.8675, "f1": 0.9201}, id="mean fusion"),
        pytest.param((151, 83, 2, 388), {"f1": 0.9013, "mcc": 0.7204}, id="federated, another seed"),
        pytest.param((141, 93, 0, 390), {"specificity": 0.6026, "f1": 0.8935}, id="mixture TSTR"),
    ],
)
def test_printed_metrics_follow_from_the_confusion_matrix(confusion, printed):
    metrics = _metrics(*confusion)
    assert {name: metrics[name] for name in printed} == pytest.approx(printed, abs=ROUNDING)


@pytest.mark.parametrize(
    ("confusions", "printed"),
    [
        pytest.param(
            [(147, 87, 0, 390), (147, 87, 0, 390), (146, 88, 0, 390)],
            {
                "specificity": (0.6268, 0.0025),
                "balanced_accuracy": (0.8134, 0.0012),
                "f1": (0.8993, 0.0006),
                "sensitivity": (1.0, 0.0),
            },
            id="diffusion at epsilon 4",
        ),
        pytest.param(
            [(147, 87, 0, 390), (152, 82, 1, 389), (153, 81, 1, 389)],
            {
                "f1": (0.9026, 0.0026),
                "balanced_accuracy": (0.8211, 0.0061),
                "sensitivity": (0.9983, 0.0015),
                "specificity": (0.6439, 0.0137),
            },
            id="real latents",
        ),
    ],
)
def test_printed_deviations_over_three_seeds_are_sample_deviations(confusions, printed):
    runs = [_metrics(*confusion) for confusion in confusions]
    for name, (mean, std) in printed.items():
        values = torch.tensor([run[name] for run in runs], dtype=torch.float64)
        assert (spread(values).mean, spread(values).std) == pytest.approx((mean, std), abs=ROUNDING), name


def test_population_deviations_would_not_round_to_the_printed_ones():
    values = torch.tensor([147 / 234, 147 / 234, 146 / 234], dtype=torch.float64)
    assert float(values.std(correction=0)) != pytest.approx(0.0025, abs=ROUNDING)


def test_balanced_accuracy_prefers_missed_positives_over_false_alarms_as_printed():
    # One more true negative is worth 389/135 = 2.9 true positives: the validation matrix has FN 12 > FP 3.
    probability = torch.cat(
        [torch.full((132,), 0.1), torch.full((12,), 0.5), torch.full((5,), 0.5), torch.full((380,), 0.9)]
    )
    target = torch.cat([torch.zeros(132), torch.ones(12), torch.zeros(5), torch.ones(380)])
    # Lowering the threshold to 0.5 gains 12 positives and 5 false alarms: worse by balanced accuracy.
    assert balanced_accuracy_threshold(probability, target) == pytest.approx(0.9)


@pytest.mark.parametrize(("epsilon", "reduction"), [(8, 0.1136), (4, 0.1161), (2, 0.1200), (1, 0.1213)])
def test_printed_attack_reductions_are_differences_of_the_printed_aurocs(epsilon, reduction):
    def constant(value: float) -> SummaryAttack:
        return SummaryAttack(
            auroc={"matched_filter": torch.full((100,), value, dtype=torch.float64)}, score_gap={}
        )

    change = paired_change(constant(ATTACK_AUROC[epsilon]), constant(ATTACK_AUROC[math.inf]))
    assert change.change.mean == pytest.approx(-reduction, abs=1e-12)
    assert change.num_reduced == 100


@pytest.mark.parametrize("epsilon", NOISE_MULTIPLIER)
def test_printed_attacks_follow_the_inverse_noise_law(epsilon):
    # A score linear in the release and measured in noise deviations: gap and d' both fall as 1/σ.
    sigma = NOISE_MULTIPLIER[epsilon]
    assert SCORE_GAP[epsilon] * sigma == pytest.approx(30.4, rel=0.08)
    assert NormalDist().cdf(0.0155 / sigma) == pytest.approx(ATTACK_AUROC[epsilon], abs=0.0011)
