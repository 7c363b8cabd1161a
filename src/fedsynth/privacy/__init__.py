"""Differential privacy: parameters, sensitivity, calibration, ledger.

Importing the package loads neither torch nor scipy. What handles tensors is imported by its module:
:mod:`fedsynth.privacy.clipping` and :mod:`fedsynth.privacy.mechanism`.
"""

from fedsynth.privacy.gaussian import analytic_gaussian_std, gaussian_delta, gaussian_epsilon
from fedsynth.privacy.ledger import Ledger, LedgerEntry, PrivacyTotal
from fedsynth.privacy.parameters import PrivacyParameterError, check_delta, check_epsilon
from fedsynth.privacy.sensitivity import Adjacency, shard_mean_sensitivity

__all__ = [
    "Adjacency",
    "Ledger",
    "LedgerEntry",
    "PrivacyParameterError",
    "PrivacyTotal",
    "analytic_gaussian_std",
    "check_delta",
    "check_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "shard_mean_sensitivity",
]
