"""What makes planned systems comparable: the same records behind all of them, and a name for each. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedsynth.errors import ConfigError


def check_own_arms(
    suppliers: Mapping[str, Any],
    path: str,
    noun: str,
    *,
    arm_of: Callable[[Any], str] = lambda one: str(one.settings.arm),
    remedy: str = "",
) -> None:
    """Refuse two systems of one arm: their numbers could not be told apart.

    Args:
        suppliers: The planned stages that are compared, by role.
        path: Config path of the comparison.
        noun: What is compared, for messages.
        arm_of: The arm of a planned stage.
        remedy: A sentence on what else to do.

    Raises:
        ConfigError: Naming the role of the second one.
    """
    seen: dict[str, str] = {}
    for role, one in suppliers.items():
        other = seen.setdefault(arm := arm_of(one), role)
        if other != role:
            raise ConfigError(
                f"{path}.inputs.{role} must name a {noun} with an arm of its own, got {one.name}, whose arm {arm!r} is "
                f"also that of {other}.{remedy and f' {remedy}'}",
                key=f"{path}.inputs.{role}",
            )


def check_comparable(
    suppliers: Mapping[str, Any], path: str, *, reference: str, noun: str, relation: str, shared: str
) -> None:
    """Refuse systems that share an arm, or that have other records than the one they are compared with.

    Args:
        suppliers: The planned stages that are compared, by role.
        path: Config path of the comparison.
        reference: Role of the one that all others are compared with.
        noun: What is compared: ``classifier``.
        relation: What it has to do with its records: ``tested on``.
        shared: The input of every system that must be the same stage.

    Raises:
        ConfigError: Naming the role that does not fit.
    """
    wanted = suppliers[reference].inputs[shared]
    for role, one in suppliers.items():
        if one.inputs[shared] != wanted:
            raise ConfigError(
                f"{path}.inputs.{role} must name a {noun} {relation} {wanted}, as that of {reference!r}, got {one.name} "
                f"{relation} {one.inputs[shared]}.",
                key=f"{path}.inputs.{role}",
            )
    check_own_arms({reference: suppliers[reference], **suppliers}, path, noun)
