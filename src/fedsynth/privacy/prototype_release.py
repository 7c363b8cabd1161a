"""Noise on class prototypes that clients send in every round (FedMPA, FedProto, FedGPD). Torch-free to construct.

A client embeds its records, clips every embedding to norm C, and sends the mean of each class c and modality m with

    p̃ = p + N(0, σ_c² I),    σ_c = Δ_c √S / μ(ε, δ),

S being the messages that one record enters. Each is μ_i-GDP with μ_i = Δ_c/σ_c; S of them, one after the other and
each allowed to depend on those before, are exactly μ-GDP (Dong, Roth and Su, 2022), i.e. (ε, δ)-DP.

| ``covers`` | Δ_c | S | holds for |
|---|---|---|---|
| ``means`` | 2C / n_c | R M | the records as inputs of encoders that are taken as given, as in DP-PMA |
| ``training`` | 2C | R M K | the encoders' training as well, if nothing else of it leaves the client |

The difference matters. The encoder of a round was trained on the very records: exchange one and **all** embeddings of
the client move, of both classes, so the mean can move by 2C, however many records it has. ``means`` says nothing
about that path; it is no guarantee for the training of FedProto, even though weights stay with its clients there.

| symbol     | name                             | meaning                                         |
|------------|----------------------------------|-------------------------------------------------|
| C          | clip_radius                      | L2 bound on every embedding                     |
| n_c        | count                            | records of the class at the client; public      |
| R, M, K    | num_rounds, num_modalities, num_classes | messages of a client                     |
| g          | records_per_person               | records of one person in a class, at most       |
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from fedsynth.errors import BudgetError, PrivacyError
from fedsynth.privacy.composition import gaussian_mu
from fedsynth.privacy.parameters import (
    PrivacyParameterError,
    check_count,
    check_delta,
    check_epsilon,
    check_positive,
)
from fedsynth.privacy.prototype_ledger import prototype_ledger_entry
from fedsynth.privacy.sensitivity import shard_mean_sensitivity
from fedsynth.seeding import derive_seed

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float, Int64
    from torch import Tensor

    from fedsynth.privacy.ledger import LedgerEntry

COVERS = ("means", "training")
LARGEST_EPSILON = 1e6  # e^ε is beyond any meaning long before; such a release would pass for a protected one
# Means are float32: one rounding moves a mean of norm C by at most C 2^-24.
_ROUNDING = 2.0**-24
# Noise of more than this leaves float32 within its own tails.
_LARGEST_STD = 1e30
# No sum of squares of embeddings of this norm leaves float32.
_SMALLEST_RADIUS, _LARGEST_RADIUS = 1e-6, 1e6


class _Prototypes(Protocol):
    """A dataclass with class means and counts by modality, as ``fedsynth.prototypes.ClassPrototypes``."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def mean(self) -> Mapping[str, Tensor]: ...

    @property
    def count(self) -> Mapping[str, Tensor]: ...


P = TypeVar("P", bound=_Prototypes)


@dataclass(frozen=True, kw_only=True)
class PrototypeMechanism:
    """(ε, δ) for all prototypes a client sends in all rounds; clips, adds noise, and states the price.

    Adjacency: one record is exchanged for another of the same client and class, in all its modalities; which
    modalities it has, and every count, stays and is public. An exchange that changes the class is NOT covered: counts
    are sent without noise. Clients and (for ``means``) classes hold different records, so they cost nothing extra.
    All R rounds are paid for by everybody: sitting out some gains nothing here.

    Attributes:
        epsilon: ε in (0, 10⁶], or ∞: embeddings are clipped, no noise is added and nothing is guaranteed.
        delta: δ in (0, 1).
        clip_radius: C, in units of the embedding, in [10⁻⁶, 10⁶].
        num_rounds: R ≥ 1.
        num_modalities: M ≥ 1, embeddings of one record that enter prototypes.
        min_class_records: A client does not send a class of which it has fewer. Depends on public counts only.
        records_per_person: g. With the largest number of records (segments) of one person in a class, which the
            caller must enforce, the guarantee is for a person. 1: for a record.
        covers: ``means`` or ``training``, see the module.
        num_classes: K, used by ``training`` only.

    Raises:
        PrivacyParameterError: For a value out of range.
    """

    epsilon: float
    delta: float
    clip_radius: float
    num_rounds: int
    num_modalities: int
    min_class_records: int = 5
    records_per_person: int = 1
    covers: str = "means"
    num_classes: int = 2

    def __post_init__(self) -> None:
        epsilon = check_epsilon(self.epsilon)
        check_delta(self.delta)
        if epsilon == 0 or LARGEST_EPSILON < epsilon < math.inf:
            raise PrivacyParameterError(
                f"epsilon must be in (0, {LARGEST_EPSILON:g}] or inf for prototypes, got {self.epsilon!r}. Typical: 2 "
                "to 8; inf clips without noise and carries no guarantee."
            )
        if not _SMALLEST_RADIUS <= check_positive(self.clip_radius, "clip_radius") <= _LARGEST_RADIUS:
            raise PrivacyParameterError(
                f"clip_radius must be in [{_SMALLEST_RADIUS:g}, {_LARGEST_RADIUS:g}], got {self.clip_radius!r}. "
                "Scale the embeddings."
            )
        for name in (
            "num_rounds",
            "num_modalities",
            "min_class_records",
            "records_per_person",
            "num_classes",
        ):
            check_count(getattr(self, name), name)
        if self.covers not in COVERS:
            raise PrivacyParameterError(
                f"covers must be one of {', '.join(COVERS)}, got {self.covers!r}. means takes the encoders as given."
            )
        if self.num_messages > 2**53:
            raise PrivacyParameterError(f"num_rounds must be a number of rounds, got {self.num_rounds!r}.")

    @property
    def is_private(self) -> bool:
        """Whether there is noise, i.e. ε is finite."""
        return not math.isinf(self.epsilon)

    @property
    def num_messages(self) -> int:
        """S, the messages that depend on one record: R M, or R M K if they do so through the encoder."""
        classes = self.num_classes if self.covers == "training" else 1
        return self.num_rounds * self.num_modalities * classes

    def sensitivity(self, count: int) -> float:
        """Δ_c: how far one message of a class of ``count`` records can move in L2, its float32 rounding included.

        ``means``: 2C min(g, n) / n. ``training``: 2C, the diameter of the ball all means lie in.

        Raises:
            PrivacyParameterError: If the count is no integer ≥ 1.
        """
        changed = min(self.records_per_person, check_count(count, "count"))
        shift = shard_mean_sensitivity(self.clip_radius, 1 if self.covers == "training" else count)
        factor = 1 if self.covers == "training" else changed
        return factor * shift + 2 * _ROUNDING * self.clip_radius

    def noise_std(self, count: int) -> float:
        """σ_c of a class of ``count`` records, in every coordinate of every message; 0.0 if ε = ∞.

        Raises:
            PrivacyParameterError: If the count is no integer ≥ 1, or the noise would not fit into float32.
        """
        sensitivity = self.sensitivity(count)
        if not self.is_private:
            return 0.0
        # fidelity: dp-prototypes
        std = sensitivity * math.sqrt(self.num_messages) / gaussian_mu(self.epsilon, self.delta)
        if not std <= _LARGEST_STD:
            raise PrivacyParameterError(
                f"epsilon={self.epsilon:g} over {self.num_messages} messages needs noise of standard deviation {std:g}, "
                "which float32 does not hold. Raise epsilon, or lower num_rounds or clip_radius."
            )
        return std

    def clip(self, embedding: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """Embeddings inside the ball of radius C, in float64: what the means must be made of.

        Raises:
            InvalidTensorError: If they are not [n, dim] or not finite.
        """
        from fedsynth.privacy.clipping import clip_to_radius

        return clip_to_radius(embedding, self.clip_radius)

    def release(self, means: P, generator: torch.Generator, *, round: int | None = None) -> P:
        """What a client sends: its means with noise, without the classes of too few records.

        With ε = ∞ the same classes are left out and nothing is added; the same random numbers are drawn.

        Args:
            means: Means of clipped embeddings (``clip``) with their counts, exact.
            generator: The client's own, of this round, from a root that depends on the training (``noise_root``).
                The noise is drawn on its device.
            round: From 0, if known: a round that was not paid for is refused.

        Raises:
            BudgetError: For a round beyond R, or more modalities or (``training``) classes than were paid for.
            PrivacyError: If a mean is longer than C, so that something was not clipped.
            InvalidTensorError: If a mean is not finite.
        """
        self._check_paid(means, round)
        # Drawn by name, not by the order in which somebody listed the modalities.
        sent = {
            name: self._noisy(means.mean[name], means.count[name], generator) for name in sorted(means.mean)
        }
        return dataclasses.replace(
            means,
            mean={name: sent[name][0] for name in means.mean},
            count={name: sent[name][1] for name in means.mean},
        )

    def _noisy(
        self, mean: Float[Tensor, "class dim"], count: Int64[Tensor, " class"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "class dim"], Int64[Tensor, " class"]]:
        from fedsynth.privacy.mechanism import add_gaussian_noise

        kept = count * (count >= self.min_class_records)
        exact = mean.double().to(generator.device)
        std = exact.new_tensor([self.noise_std(records) if records else 0.0 for records in kept.tolist()])
        noisy = add_gaussian_noise(exact, std.unsqueeze(1), generator)
        return noisy.to(mean) * (kept > 0).unsqueeze(1), kept

    def _check_paid(self, means: _Prototypes, round: int | None) -> None:
        if round is not None and not 0 <= round < self.num_rounds:
            raise BudgetError(
                f"Prototypes of round {round} were not paid for: num_rounds={self.num_rounds}. Plan for all rounds."
            )
        if len(means.mean) > self.num_modalities:
            raise BudgetError(
                f"Prototypes of {len(means.mean)} modalities ({', '.join(means.mean)}) were not paid for: "
                f"num_modalities={self.num_modalities}."
            )
        for modality, mean in means.mean.items():
            if self.covers == "training" and len(mean) > self.num_classes:
                raise BudgetError(
                    f"Prototypes of {len(mean)} classes were not paid for: num_classes={self.num_classes}."
                )
            longest = float(mean.double().norm(dim=1).max())
            if longest > self.clip_radius * (1 + 2 * _ROUNDING):
                raise PrivacyError(
                    f"A mean of {modality!r} has norm {longest:.6g}, above clip_radius={self.clip_radius:g}: it is not "
                    "one of clipped embeddings, and its noise would be too small. Average what clip() returns."
                )

    def ledger_entry(self, stage: str, counts: Collection[int], published: tuple[str, ...]) -> LedgerEntry:
        """What all prototypes of all clients in all rounds cost: see ``prototype_ledger.prototype_ledger_entry``."""
        return prototype_ledger_entry(self, stage=stage, counts=counts, published=published)


def noise_root(seed: int, key: str, *, secure_noise: bool) -> int:
    """Root of the noise streams of one training: ``seeding.generator(root, "prototypes", client, round)``.

    Args:
        seed: Of the run.
        key: Of the artifact: trainings that differ in anything do not share noise, which could be subtracted.
        secure_noise: Take the root from the operating system instead. Write it nowhere, checkpoints included; a
            round that was cut short then draws anew.
    """
    return secrets.randbits(63) if secure_noise else derive_seed(seed, "prototype_release", key)
