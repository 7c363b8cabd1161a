"""Transcripts of the simulated E-DAIC: questions and answers from templates, no speaker named.

Answers are ordinary, gloomy or cheerful in the shares of the speaker's manner. Gloomy ones lean to what word
counts of depressed speech report (first person singular, absolute words, sleep, fatigue, solitude); the
templates are made up. Timing carries the speaker's slowness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsynth.data.edaic.layout import Utterance
from fedsynth.data.edaic.simulated_people import Person

SESSION_SECONDS = (32.0, 40.0)
_SILENCE = 0.4  # seconds before the first and after the last word


@dataclass(frozen=True)
class Turn:
    """One utterance with what the transcript of the corpus does not tell."""

    utterance: Utterance
    is_participant: bool
    confidence: float
    """Of the speech recognition, 0 to 1."""


_QUESTIONS_OPERATED = (
    "so how are you doing today", "where did you grow up", "what do you do for a living",
    "how is your family", "what do you do in a free hour", "how do you sleep most nights",
    "what did you do last weekend", "who do you talk to when things are hard", "tell me more about that",
    "what is your town like", "how would your friends describe you", "what are you like in the morning",
)  # fmt: skip
_QUESTIONS_AGENT = (
    "hello i am here to listen", "how are things going at home", "what is a usual day like for you",
    "do you get on with people at work", "when did you last laugh", "is it easy for you to rest",
    "what would you like to change", "okay go on", "what was the last trip you took",
    "what helps you when you feel stressed", "how was your week",
)  # fmt: skip
_ORDINARY = {
    "work": (
        "i work in {a} office near the {b}", "the shift starts at {n} and we close at {n}",
        "my boss moved us to the {b} last year", "we mostly answer calls about {t}",
    ),
    "home": (
        "i grew up near the {b} in a small town", "my brother lives about {n} miles from here",
        "we moved out here from the east with {a} truck", "there is a {b} next to the house",
    ),
    "days": (
        "i usually take the bus and then walk to the {b}", "i cook rice and watch {t} after dinner",
        "on saturday we went to the {b} for {t}", "i wake up at {n} and make some coffee",
    ),
    "study": (
        "i studied {t} for {n} years", "the class meets in {a} room by the {b}",
        "i read a book about {t} last month", "the exam was mostly about {t}",
    ),
}  # fmt: skip
_GLOOMY = (
    "i just can not sleep {w} i lie there alone for hours", "i am {w} tired and i never feel rested",
    "i feel like nothing {w} works out for me", "i do not see anybody i {w} stay by myself",
    "i lost interest in {t} i {w} do not care anymore", "i blame myself for everything it is {w} my fault",
    "it is {w} hard for me to get up i have no energy", "i cry {w} and i do not know why",
    "i feel empty and {w} hopeless about myself", "i can not focus on {t} my mind {w} goes blank",
)  # fmt: skip
_CHEERFUL = (
    "we had a {g} time at the {b} with friends", "my kids make me laugh it is {g}",
    "i love {t} it is a {g} feeling", "i am looking forward to our trip to the {b}",
    "things are {g} we are really happy here", "i slept well and the morning was {g}",
    "we celebrated at the {b} and it was so much fun", "i am proud of our team we did {g} work",
    "people are kind here and i enjoy every {g} day", "i feel {g} full of energy thank you",
)  # fmt: skip
_SLOTS = {
    "a": ("an old", "a quiet", "a big", "a shared"),
    "b": ("river", "market", "station", "park", "school", "beach", "library", "garage"),
    "n": ("five", "six", "seven", "eight", "nine", "two", "three"),
    "t": ("music", "history", "cars", "football", "computers", "movies", "nursing", "cooking"),
    "w": ("always", "really", "just", "never", "completely", "all the time"),
    "g": ("great", "wonderful", "nice", "lovely", "fantastic", "good"),
}
_FILLERS = ("um", "uh", "you know", "like", "well", "i mean", "yeah")


def simulated_turns(rng: np.random.Generator, person: Person) -> tuple[list[Turn], float]:
    """The turns of one session in time order, and its length in seconds.

    No two turns overlap; all lie inside the session.
    """
    questions = rng.permutation(_QUESTIONS_AGENT if person.agent else _QUESTIONS_OPERATED).tolist()
    fillers = rng.choice(_FILLERS, 2, replace=False).tolist()  # the speaker's own
    topics = rng.dirichlet(np.full(len(_ORDINARY), 0.7))
    slowness = float(np.exp(0.12 * person.manner.flatness + rng.normal(0, 0.12)))
    length = float(rng.uniform(*SESSION_SECONDS))
    turns: list[Turn] = []
    time = _SILENCE
    while True:
        question = questions[(len(turns) // 2) % len(questions)]
        answer = _answer(rng, person, topics, fillers)
        asked = time + _spoken_seconds(rng, question, 1.0)
        begun = asked + float(rng.gamma(4, 0.11)) * slowness**2
        ended = begun + _spoken_seconds(rng, answer, slowness)
        if ended > length - _SILENCE and turns:
            return turns, round(length, 2)
        turns += [_turn(rng, time, asked, question, False), _turn(rng, begun, ended, answer, True)]
        time = ended + float(rng.uniform(0.2, 0.5))


def _turn(rng: np.random.Generator, start: float, end: float, text: str, is_participant: bool) -> Turn:
    # Speech recognition prints tenths of a second.
    return Turn(Utterance(round(start, 1), round(end, 1), text), is_participant, float(rng.beta(18, 2)))


def _spoken_seconds(rng: np.random.Generator, text: str, slowness: float) -> float:
    return (0.2 + 0.2 * len(text.split())) * slowness * float(rng.uniform(0.9, 1.1))


def _answer(rng: np.random.Generator, person: Person, topics: np.ndarray, fillers: list[str]) -> str:
    mood = rng.random()
    if mood < person.manner.gloom:
        template = str(rng.choice(_GLOOMY))
    elif mood < person.manner.gloom + person.manner.cheer:
        template = str(rng.choice(_CHEERFUL))
    else:
        template = str(rng.choice(list(_ORDINARY.values())[rng.choice(len(topics), p=topics)]))
    text = template.format(**{slot: rng.choice(words) for slot, words in _SLOTS.items()})
    return f"{rng.choice(fillers)} {text}" if rng.random() < 0.4 else text
