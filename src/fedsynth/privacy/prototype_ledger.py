"""The ledger entry of class prototypes sent in every round: price, what it covers, what it does not. Torch-free."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fedsynth.errors import PrivacyError
from fedsynth.privacy.ledger import LedgerEntry, LedgerPart
from fedsynth.privacy.parameters import PrivacyParameterError
from fedsynth.privacy.sensitivity import Adjacency

if TYPE_CHECKING:
    from fedsynth.privacy.prototype_release import PrototypeMechanism

#: For ``published``: strategies that send models beside prototypes (FedMPA, FedGPD) name them by this.
CLIENT_WEIGHTS = "FedAvg updates: every client's weights and normalization statistics, in every round"

_COVERED = {
    "means": "noisy class means of clipped embeddings, per client and modality, in all rounds; the encoders are given",
    "training": "noisy class means of clipped embeddings, per client and modality, in all rounds, and the training "
    "of the encoders as far as it shows in them",
}
ENCODERS = "the encoders behind the prototypes: they were trained on the same records without noise"
_SEVERAL = "a person who contributes several records of a class (the unit is one record)"


def prototype_ledger_entry(
    mechanism: PrototypeMechanism, *, stage: str, counts: Collection[int], published: tuple[str, ...]
) -> LedgerEntry:
    """The price of all prototypes of all clients in all rounds, for one record (or person).

    It is about prototypes alone. Weights that clients send beside them need an entry of their own, without
    guarantee, as FedAvg updates have; ``published`` names them here as well. ε = ∞ gives such an entry at once.

    Args:
        mechanism: What the clients apply.
        stage: Name of the stage that trains.
        counts: Records of every client and class.
        published: What leaves the clients beside the prototypes without noise, e.g. ``CLIENT_WEIGHTS``.

    Raises:
        PrivacyParameterError: If no client has enough records of any class.
        PrivacyError: If ``covers="training"`` while ``CLIENT_WEIGHTS`` leave the clients.
    """
    kept = [count for count in counts if count >= mechanism.min_class_records]
    if not kept:
        raise PrivacyParameterError(
            f"min_class_records={mechanism.min_class_records} leaves no prototype to send: the largest class of a "
            f"client has {max(counts, default=0)} records. Lower it, or take fewer clients."
        )
    num_releases = len(kept) * mechanism.num_rounds * mechanism.num_modalities
    not_covered = (*published, *_gaps(mechanism))
    if not mechanism.is_private:
        exact = f"{_COVERED['means']}; clipped, without noise"
        return LedgerEntry.without_guarantee(
            stage=stage, published=(exact, *not_covered), num_releases=num_releases
        )
    if mechanism.covers == "training" and CLIENT_WEIGHTS in published:
        raise PrivacyError(
            "covers=training cannot hold while weights leave the clients. Use covers=means, which takes the encoders "
            "as given, or a strategy that keeps weights on the clients (fedproto)."
        )
    largest, noisiest = mechanism.sensitivity(min(kept)), mechanism.noise_std(min(kept))
    messages = mechanism.num_messages
    person = mechanism.records_per_person
    is_means = mechanism.covers == "means"
    return LedgerEntry(
        stage=stage,
        mechanism="analytic Gaussian",
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        adjacency=Adjacency.REPLACE_ONE,
        covered=_COVERED[mechanism.covers]
        + (f"; for a person of at most {person} records of a class" if person > 1 else ""),
        not_covered=not_covered,
        num_releases=num_releases,
        sensitivity_range=(mechanism.sensitivity(max(kept)), largest),
        noise_std_range=(mechanism.noise_std(max(kept)), noisiest),
        composition=f"exact over {messages} messages (Gaussian differential privacy); parallel over clients"
        + (" and classes" if is_means else ""),
        parts=(LedgerPart("prototypes", 1.0, largest, noisiest, messages),),
    )


def _gaps(mechanism: PrototypeMechanism) -> tuple[str, ...]:
    """Under ``training`` the sensitivity is that of any exchange, however many records it touches."""
    if mechanism.covers == "training":
        return ()
    return (ENCODERS,) if mechanism.records_per_person > 1 else (ENCODERS, _SEVERAL)
