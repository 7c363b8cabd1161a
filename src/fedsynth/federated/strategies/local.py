"""No federation: every client trains alone."""

from __future__ import annotations

from fedsynth.federated.strategies.personal import PersonalModels


class LocalOnly(PersonalModels):
    """Nothing leaves a client in training. The baseline that says what federation is worth."""
