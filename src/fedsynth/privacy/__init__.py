"""Differential privacy: parameters, sensitivity, calibration, ledger.

Importing the package loads neither torch nor scipy. What handles tensors is imported by its module:
:mod:`fedsynth.privacy.clipping`, :mod:`fedsynth.privacy.mechanism`, :mod:`fedsynth.privacy.budget` and
:mod:`fedsynth.privacy.quantile`.
"""

from fedsynth.privacy.composition import Composition, check_shares, composed_epsilon, gaussian_mu, share_mu
from fedsynth.privacy.gaussian import analytic_gaussian_std, gaussian_delta, gaussian_epsilon
from fedsynth.privacy.ledger import Ledger, LedgerEntry, LedgerPart, PrivacyTotal
from fedsynth.privacy.parameters import PrivacyParameterError, check_delta, check_epsilon
from fedsynth.privacy.prototype_ledger import CLIENT_WEIGHTS
from fedsynth.privacy.prototype_release import PrototypeMechanism, noise_root
from fedsynth.privacy.sensitivity import (
    Adjacency,
    count_sensitivity,
    counted_sum_sensitivity,
    second_moment_sensitivity,
    shard_mean_sensitivity,
    weakest_common,
)

__all__ = [
    "CLIENT_WEIGHTS",
    "Adjacency",
    "Composition",
    "Ledger",
    "LedgerEntry",
    "LedgerPart",
    "PrivacyParameterError",
    "PrivacyTotal",
    "PrototypeMechanism",
    "analytic_gaussian_std",
    "check_delta",
    "check_epsilon",
    "check_shares",
    "composed_epsilon",
    "count_sensitivity",
    "counted_sum_sensitivity",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "noise_root",
    "second_moment_sensitivity",
    "shard_mean_sensitivity",
    "share_mu",
    "weakest_common",
]
