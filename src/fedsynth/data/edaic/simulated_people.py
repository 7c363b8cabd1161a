"""Who is in the simulated E-DAIC: numbers, splits, questionnaires, and how each person speaks.

The counts are those published for the corpus, its disagreement of labels included: people with PHQ_Binary 0
and a PHQ-8 total of 10 or more. No person of the corpus is imitated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

PHQ8_ITEMS = (
    "NoInterest", "Depressed", "Sleep", "Tired", "Appetite", "Failure", "Concentrating", "Moving",
)  # fmt: skip
LEAST_POSITIVE, LEAST_CONTROL = 4, 8  # of a split, at any scale
HUMAN_NUMBERS = [number for number in range(300, 493) if number not in (342, 394, 398, 460)]
AGENT_NUMBERS = list(range(600, 719))


@dataclass(frozen=True)
class _SplitCounts:
    positive: int
    control: int
    conflict: int
    """Controls whose PHQ-8 total is 10 or more."""
    agent: int
    """People interviewed by the autonomous agent; the others by an operated one."""


COUNTS = {
    "train": _SplitCounts(37, 126, 12, 20),
    "val": _SplitCounts(12, 44, 4, 10),
    "test": _SplitCounts(17, 39, 4, 56),
}
# Totals of those marked depressed: with the 20 conflicts in the lowest band this is the published 43/33/10.
_SEVERITY_BANDS = ((10, 14, 23), (15, 19, 33), (20, 24, 10))


@dataclass(frozen=True)
class Manner:
    """How someone speaks; 0, _USUAL_GLOOM and _USUAL_CHEER are the ordinary manner."""

    flatness: float
    """Shift of the voice towards low, quiet, monotone, slow and rough; 1 is clearly heard."""
    gloom: float
    """Share of answers about lack of sleep, energy, hope, company."""
    cheer: float
    """Share of answers about things enjoyed."""


_USUAL_GLOOM, _USUAL_CHEER = 0.08, 0.12
_MANNERS = {
    "plain": Manner(0.0, _USUAL_GLOOM, _USUAL_CHEER),
    "reserved": Manner(1.3, _USUAL_GLOOM, _USUAL_CHEER),
    "cheerful": Manner(-0.5, 0.04, 0.75),
    "flat voice": Manner(3.0, 0.2, _USUAL_CHEER),
    "gloomy words": Manner(0.5, 0.8, 0.05),
    # The voice of "reserved" with the words of "cheerful": only both together tell.
    "masked": Manner(1.6, 0.04, 0.8),
}
# Shares of the manners by status. A few depressed people show nothing; half of the conflicts speak as depressed.
_SHARES = {
    "positive": {"flat voice": 0.36, "gloomy words": 0.36, "masked": 0.25, "plain": 0.03},
    "conflict": {"plain": 0.5, "flat voice": 0.2, "gloomy words": 0.2, "masked": 0.1},
    "control": {"plain": 0.6, "reserved": 0.2, "cheerful": 0.2},
}
_FLATNESS_SPREAD = 0.35


@dataclass(frozen=True)
class Person:
    """One simulated participant."""

    number: int
    split: str
    """"train", "val" or "test"."""
    gender: str
    phq_binary: int
    items: tuple[int, ...]
    """Eight PHQ-8 items, 0 to 3."""
    ptsd_severity: int
    """PCL-C total, 17 to 85."""
    agent: bool
    """Interviewed by the autonomous agent: another room, microphone and questions."""
    manner: Manner

    @property
    def phq_score(self) -> int:
        """PHQ-8 total, 0 to 24."""
        return sum(self.items)

    @property
    def ptsd(self) -> int:
        """PCL-C above the customary cut of 44."""
        return int(self.ptsd_severity >= 44)


def simulated_people(rng: np.random.Generator, scale: float) -> list[Person]:
    """Everyone, by number.

    Args:
        rng: Source of randomness.
        scale: Share of the full cohort of 275, in (0, 1]; every split keeps at least 4 depressed and 8 others.
    """
    counts = {split: _scaled(full, scale) for split, full in COUNTS.items()}
    status = {split: _statuses(rng, count) for split, count in counts.items()}
    scores = _scores(rng, [name for names in status.values() for name in names])
    human = iter(rng.permutation(HUMAN_NUMBERS).tolist())
    agent = iter(rng.permutation(AGENT_NUMBERS).tolist())
    people = []
    for split, names in status.items():
        manners = _manners(rng, names)
        for index, (name, manner) in enumerate(zip(names, manners, strict=True)):
            is_agent = index < counts[split].agent
            score = next(scores)
            people.append(
                Person(
                    number=next(agent if is_agent else human),
                    split=split,
                    gender="male" if rng.random() < 0.6 else "female",
                    phq_binary=int(name == "positive"),
                    items=_items(rng, score),
                    ptsd_severity=int(np.clip(round(20 + 1.9 * score + rng.normal(0, 7)), 17, 85)),
                    agent=is_agent,
                    manner=manner,
                )
            )
    return sorted(people, key=lambda person: person.number)


def _scaled(full: _SplitCounts, scale: float) -> _SplitCounts:
    positive = max(LEAST_POSITIVE, round(full.positive * scale))
    control = max(LEAST_CONTROL, round(full.control * scale))
    is_all_agent = full.agent == full.positive + full.control
    return _SplitCounts(
        positive,
        control,
        max(1, round(full.conflict * scale)),
        positive + control if is_all_agent else max(1, round(full.agent * scale)),
    )


def _statuses(rng: np.random.Generator, count: _SplitCounts) -> list[str]:
    names = ["positive"] * count.positive + ["conflict"] * count.conflict
    names += ["control"] * (count.control - count.conflict)
    return rng.permutation(names).tolist()


def _scores(rng: np.random.Generator, statuses: Sequence[str]) -> Iterator[int]:
    """PHQ-8 totals in the order of `statuses`."""
    bands = [(low, high) for low, high, number in _SEVERITY_BANDS for _ in range(number)]
    drawn = iter(rng.permutation(len(bands)).tolist())
    for status in statuses:
        if status == "positive":
            low, high = bands[next(drawn)]
        else:
            low, high = (10, 14) if status == "conflict" else (0, 9)
        spread = rng.beta(0.9, 1.6) if status == "control" else rng.random()
        yield min(high, low + int(spread * (high - low + 1)))


def _items(rng: np.random.Generator, total: int) -> tuple[int, ...]:
    """Eight items of 0 to 3 with this total."""
    slots = np.repeat(np.arange(len(PHQ8_ITEMS)), 3)
    chosen = rng.permutation(slots)[:total]
    return tuple(np.bincount(chosen, minlength=len(PHQ8_ITEMS)).tolist())


def _manners(rng: np.random.Generator, statuses: Sequence[str]) -> list[Manner]:
    """A manner for each, in fixed shares by status, so that a seed does not change how hard the task is."""
    manners: dict[int, Manner] = {}
    for status, shares in _SHARES.items():
        places = [index for index, name in enumerate(statuses) if name == status]
        for place, name in zip(places, _quotas(rng, shares, len(places)), strict=True):
            usual = _MANNERS[name]
            flatness = usual.flatness + rng.normal(0, _FLATNESS_SPREAD)
            manners[place] = Manner(flatness, usual.gloom, usual.cheer)
    return [manners[index] for index in range(len(statuses))]


def _quotas(rng: np.random.Generator, shares: Mapping[str, float], number: int) -> list[str]:
    """`number` names in these shares, rounded at random, in random order."""
    points = (np.arange(number) + rng.random()) / max(number, 1)
    chosen = np.searchsorted(np.cumsum(list(shares.values()))[:-1], points, side="right")
    return rng.permutation([list(shares)[index] for index in chosen]).tolist() if number else []
