"""Latents of one arm, to train on."""

from __future__ import annotations

from fedsynth.stages.labelled_latents import LabelledLatentsData


class ArmLatentsData(LabelledLatentsData):
    """Labelled latents of one arm; real validation and test latents never enter it."""
