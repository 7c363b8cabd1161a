"""What was released, under which adjacency, at which price, and what is not covered. Free of torch.

A ledger is written with the run and printed in its report. A step without a guarantee is an entry with
ε = ∞, never an omission: whoever adds up the entries cannot overlook it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from fedsynth.errors import ArtifactError, PrivacyError
from fedsynth.privacy.composition import composed_epsilon
from fedsynth.privacy.parameters import check_count, check_delta, check_epsilon
from fedsynth.privacy.sensitivity import Adjacency, weakest_common


class PrivacyTotal(NamedTuple):
    """The (ε, δ) of everything in a ledger together."""

    epsilon: float
    delta: float


class LedgerPart(NamedTuple):
    """One kind of Gaussian release inside an entry that is paid for from one (ε, δ).

    Attributes:
        name: What was released.
        share: Part of the budget it used, in (0, 1].
        sensitivity: L2 sensitivity of each release.
        noise_std: Standard deviation of its noise.
        num_releases: How many such releases there were, one after the other.
    """

    name: str
    share: float
    sensitivity: float
    noise_std: float
    num_releases: int

    @property
    def mu(self) -> float:
        """√num_releases Δ/σ: the parameter of Gaussian differential privacy of all of them."""
        return math.sqrt(self.num_releases) * self.sensitivity / self.noise_std


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One release: what it costs one record, what that covers, and what it does not.

    Attributes:
        stage: Name of the stage that published.
        mechanism: E.g. ``"analytic Gaussian"``; ``"none"`` for a step without a guarantee.
        epsilon: ε in [0, ∞]; ∞ for a step without a guarantee.
        delta: δ in (0, 1); 0 is allowed together with ε = ∞ only.
        adjacency: The neighboring relation the guarantee holds for; None together with ε = ∞ only.
        covered: What the guarantee is about, in words.
        not_covered: What is published or used beside it without any guarantee.
        num_releases: How many quantities were published (shard means, for instance).
        sensitivity_range: Smallest and largest L2 sensitivity among them.
        noise_std_range: Smallest and largest noise standard deviation among them.
        composition: Why ``num_releases`` quantities together cost one (ε, δ).
        parts: The Gaussian releases that are composed, if there are several kinds. Checked: their exact price at
            δ must not exceed ε.

    Raises:
        PrivacyParameterError: For ε, δ or ``num_releases`` out of range.
        PrivacyError: For a finite ε without adjacency, with noise of standard deviation 0, or with parts that
            cost more.
    """

    stage: str
    mechanism: str
    epsilon: float
    delta: float
    adjacency: Adjacency | None
    covered: str
    not_covered: tuple[str, ...]
    num_releases: int
    sensitivity_range: tuple[float, float]
    noise_std_range: tuple[float, float]
    composition: str = "parallel over disjoint shards"
    parts: tuple[LedgerPart, ...] = ()

    def __post_init__(self) -> None:
        where = f"ledger entry {self.stage!r}"
        check_epsilon(self.epsilon, f"{where}: epsilon")
        check_count(self.num_releases, f"{where}: num_releases", minimum=0)
        if not self.is_private:
            return
        check_delta(self.delta, f"{where}: delta")
        if self.adjacency is None:
            raise PrivacyError(
                f"{where} claims epsilon={self.epsilon} without an adjacency. Name the neighboring relation, "
                "or record the step with epsilon=inf."
            )
        if self.num_releases > 0 and not min(self.noise_std_range) > 0:
            raise PrivacyError(
                f"{where} claims epsilon={self.epsilon} but its noise_std_range is {self.noise_std_range}. "
                "Without noise the price is epsilon=inf."
            )
        self._check_parts(where)

    def _check_parts(self, where: str) -> None:
        if not self.parts:
            return
        if any(not part.noise_std > 0 for part in self.parts):
            raise PrivacyError(f"{where} has a part without noise. Its price is epsilon=inf.")
        exact = composed_epsilon([part.mu for part in self.parts], self.delta)
        if exact > self.epsilon * (1 + 1e-9):
            raise PrivacyError(
                f"{where} claims epsilon={self.epsilon} but its parts cost {exact:.6g} at delta={self.delta:g}: "
                f"{', '.join(part.name for part in self.parts)}. Give each of them more noise."
            )

    @property
    def is_private(self) -> bool:
        """Whether the entry carries a guarantee, i.e. ε is finite."""
        return not math.isinf(self.epsilon)

    @classmethod
    def without_guarantee(
        cls, *, stage: str, published: tuple[str, ...], num_releases: int = 1
    ) -> LedgerEntry:
        """The entry of a step that publishes something derived from records without any noise."""
        return cls(
            stage=stage,
            mechanism="none",
            epsilon=math.inf,
            delta=0.0,
            adjacency=None,
            covered="nothing",
            not_covered=published,
            num_releases=num_releases,
            sensitivity_range=(0.0, 0.0),
            noise_std_range=(0.0, 0.0),
            composition="none",
        )

    def to_record(self) -> dict[str, Any]:
        """Plain JSON types. An infinite ε becomes the text ``"inf"``, which ``float`` reads back."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        record["epsilon"] = self.epsilon if self.is_private else "inf"
        record["adjacency"] = self.adjacency.value if self.adjacency else None
        for name in ("not_covered", "sensitivity_range", "noise_std_range"):
            record[name] = list(record[name])
        parts = record.pop("parts")
        return record | {"parts": [part._asdict() for part in parts]} if parts else record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LedgerEntry:
        """The inverse of :meth:`to_record`.

        Raises:
            ArtifactError: If keys are missing or unknown, or the adjacency is not one of ours.
        """
        expected = {field.name for field in fields(cls)} - {"parts"}
        if set(record) - {"parts"} != expected:
            raise ArtifactError(
                f"A ledger entry has missing keys {sorted(expected - set(record))} and unknown keys "
                f"{sorted(set(record) - expected - {'parts'})}. It was written by another version; run the stage again."
            )
        values = dict(record)
        try:
            adjacency = None if values["adjacency"] is None else Adjacency(values["adjacency"])
            low_sensitivity, high_sensitivity = map(float, values["sensitivity_range"])
            low_std, high_std = map(float, values["noise_std_range"])
            values |= {
                "epsilon": float(values["epsilon"]),
                "delta": float(values["delta"]),
                "adjacency": adjacency,
                "not_covered": tuple(values["not_covered"]),
                "sensitivity_range": (low_sensitivity, high_sensitivity),
                "noise_std_range": (low_std, high_std),
                "parts": tuple(LedgerPart(**part) for part in values.get("parts", ())),
            }
        except (TypeError, ValueError) as error:
            raise ArtifactError(
                f"The ledger entry of stage {record['stage']!r} cannot be read: {error}. Run the stage again."
            ) from error
        return cls(**values)


class Ledger:
    """The releases of one run, in order."""

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        return tuple(self._entries)

    def add(self, entry: LedgerEntry) -> None:
        """Record one release."""
        self._entries.append(entry)

    def total(self) -> PrivacyTotal:
        """Sequential basic composition: ε and δ of the entries add up (δ at most 1).

        An upper bound: entries on disjoint records would cost less, and tighter accountants exist. One
        entry without a guarantee makes the total ε = ∞; an empty ledger costs (0, 0).

        Entries for REPLACE_ONE and REPLACE_ONE_ANY_LABEL add up under REPLACE_ONE, which the other implies.

        Raises:
            PrivacyError: If private entries hold for different adjacencies, which do not add up.
        """
        adjacencies = {entry.adjacency for entry in self._entries if entry.is_private and entry.adjacency}
        if adjacencies and weakest_common(adjacencies) is None:
            names = ", ".join(sorted(adjacency.value for adjacency in adjacencies))
            raise PrivacyError(
                f"The ledger holds guarantees for different adjacencies ({names}), which do not add up. "
                "Convert the mechanisms to one adjacency first."
            )
        epsilon = math.fsum(entry.epsilon for entry in self._entries)
        return PrivacyTotal(epsilon, min(1.0, math.fsum(entry.delta for entry in self._entries)))

    @property
    def adjacency(self) -> Adjacency | None:
        """The relation under which :meth:`total` holds; None if nothing is private or nothing is common."""
        return weakest_common(
            {entry.adjacency for entry in self._entries if entry.is_private and entry.adjacency}
        )

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary of plain JSON types per entry."""
        return [entry.to_record() for entry in self._entries]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Ledger:
        """The inverse of :meth:`to_records`."""
        return cls(LedgerEntry.from_record(record) for record in records)
