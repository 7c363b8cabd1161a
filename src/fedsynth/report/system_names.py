"""The federated systems of FedMPA's experiments by arm: their titles, their order, what makes one a variant.

An arm is ``fedmpa``, ``fedmpa_no_pull`` (an ablation), ``fedmpa_dp`` (noisy prototypes), ``fedmpa_clients_16`` (another
number of clients) or any other name, which is then shown as it is.
"""

from __future__ import annotations

import re

#: The systems of the paper's table, in its order.
PAPER_SYSTEMS = {
    "centralized": "Centralized",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
    "fedproto": "FedProto",
    "fedgpd": "FedGPD",
    "fedmpa": "FedMPA",
}
#: Controls that the paper does not have.
CONTROL_SYSTEMS = {
    "local": "local-only",
    "fedavg_weighted": "FedAvg, class-weighted loss",
    "fedavg_momentum": "FedAvg, class-weighted loss, server momentum",
}
#: FedMPA with one part changed, in the order of the table.
ABLATIONS = {
    "fedmpa_no_repulsion": "no repulsion",
    "fedmpa_no_pull": "no prototype pull",
    "fedmpa_plain_cross_entropy": "plain cross-entropy",
    "fedmpa_cross_entropy_only": "cross-entropy alone",
    "fedmpa_softmax_only": "softmax-only inference",
    "fedmpa_fedavg_weights": "clients weighted by records",
    "fedmpa_no_momentum": "no server momentum",
    "fedmpa_no_bank_ema": "no moving average of the bank",
}
_TITLES = PAPER_SYSTEMS | CONTROL_SYSTEMS | {arm: f"FedMPA, {what}" for arm, what in ABLATIONS.items()}
_PRIVATE = re.compile(r"(.+)_dp(?:_eps_?([\d.]+))?")
_SCALED = re.compile(r"(.+)_clients_(\d+)")
#: What the names of stages about one system start with, and what they hold.
_STAGE_PREFIXES = {"score_": "performance and privacy", "leakage_": "leakage of prototypes"}


def system_title(arm: str) -> str | None:
    """``FedMPA, DP prototypes``, ``FedAvg, 16 clients``; None for an arm that is no federated system."""
    if arm in _TITLES:
        return _TITLES[arm]
    if scaled := scaled_system(arm):
        base = system_title(scaled[0])
        return base and f"{base}, {scaled[1]} clients"
    if private := _PRIVATE.fullmatch(arm):
        base = system_title(private[1])
        return base and f"{base}, DP prototypes" + (f", ε = {private[2]}" if private[2] else "")
    return None


def system_stage_title(name: str) -> str | None:
    """``FedMPA: performance and privacy`` for ``score_fedmpa``, ``FedMPA`` for the stage that trains it; else None."""
    for prefix, what in _STAGE_PREFIXES.items():
        title = system_title(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if title:
            return f"{title}: {what}"
    return system_title(name)


def scaled_system(arm: str) -> tuple[str, int] | None:
    """(system, number of clients) of an arm like ``fedavg_clients_16``; None for any other."""
    found = _SCALED.fullmatch(arm)
    return (found[1], int(found[2])) if found else None


def is_private_system(arm: str) -> bool:
    """Whether the arm is a system whose prototypes carry noise, by its name."""
    return _PRIVATE.fullmatch(arm) is not None


def is_main_system(arm: str) -> bool:
    """Whether the arm belongs in the table of systems: neither an ablation nor another number of clients."""
    return arm not in ABLATIONS and scaled_system(arm) is None


def system_rank(arm: str) -> tuple[int, int, int, str]:
    """Sorts arms: the paper's systems in its order, controls, noisy ones, ablations, numbers of clients, the rest."""
    order = [*PAPER_SYSTEMS, *CONTROL_SYSTEMS, *ABLATIONS]
    if arm in order:
        return (2 if arm in ABLATIONS else 0), order.index(arm), 0, arm
    base, group, number = arm, 4, 0
    if private := _PRIVATE.fullmatch(arm):
        base, group = private[1], 1
    elif scaled := scaled_system(arm):
        (base, number), group = scaled, 3
    return group, order.index(base) if base in order else len(order), number, arm


def base_rank(arm: str) -> tuple[int, int, str]:
    """Sorts a system's noisy form behind the system itself."""
    private = _PRIVATE.fullmatch(arm)
    _, index, _, _ = system_rank(arm)
    return index, 1 if private else 0, arm
