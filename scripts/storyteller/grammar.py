"""A grammar of small stories: plots told in beats, with a cast, choices and words drawn from a seed.

The notation is explained in plots.txt. Every story has an opening, one plot and an ending, and is one paragraph.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storyteller.words import WORDS, with_article

_FOLDER = Path(__file__).parent
_GIRLS, _BOYS = WORDS["girls"] + WORDS["more_girls"], WORDS["boys"] + WORDS["more_boys"]
_ANIMALS, _KINDS = WORDS["animals"] + WORDS["more_animals"], WORDS["kinds"] + WORDS["more_kinds"]
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_WORD = re.compile(r"<(\w+)>")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Beat:
    """One step of a plot and the ways to tell it; `follows` where the way is that of the step before."""

    ways: Sequence[str]
    follows: bool


class Grammar:
    """The plots and words of this folder."""

    def __init__(self) -> None:
        frame = read_plots(_FOLDER / "openings.txt")
        self._opening, self._ending = frame["opening"], frame["ending"]
        self._plots = list(read_plots(_FOLDER / "plots.txt").values())

    def story(self, chance: random.Random) -> str:
        """One story."""
        beats = [*self._opening, *chance.choice(self._plots), *self._ending]
        return self._Telling(chance).tell(beats)

    def ending(self, chance: random.Random, hero: str, pronoun: str) -> str:
        """A last sentence for a story about `hero`; may be empty."""
        return self._Telling(chance, hero, pronoun).tell(self._ending)

    class _Telling:
        """One story while it is told: who is in it, and who was named already."""

        def __init__(self, chance: random.Random, hero: str | None = None, he: str | None = None) -> None:
            self._chance = chance
            self._slots = _cast(chance, hero, he)
            self._friend_is_known = False

        def tell(self, beats: Sequence[Beat]) -> str:
            way = 0
            sentences: list[str] = []
            for beat in beats:
                if not beat.follows:
                    way = self._chance.randrange(len(beat.ways))
                sentences.append(self._expand(beat.ways[way]))
            return spell(" ".join(filter(None, sentences)))

        def _expand(self, text: str) -> str:
            while match := _CHOICE.search(text):
                text = text[: match.start()] + self._chance.choice(match[1].split("|")) + text[match.end() :]
            text = _WORD.sub(lambda match: self._chance.choice(WORDS[match[1]]), text)
            return _SLOT.sub(self._fill, text)

        def _fill(self, match: re.Match[str]) -> str:
            slot, before = match[1], match.string[: match.start()]
            if slot == "hero":
                return self._slots["the_hero"] if self._chance.random() < 0.2 else self._slots["name"]
            if slot == "friend_in":
                slot = "friend" if self._friend_is_known else slot
                self._friend_is_known = True
            elif slot == "friend" and not self._friend_is_known:
                self._friend_is_known = True
                if not before.endswith(("friend ", "friend named ")):
                    return f"{self._slots['his']} friend {self._slots['friend']}"
            return self._slots[slot]


def read_plots(file: Path) -> dict[str, list[Beat]]:
    """The beats of each plot of a file, by name."""
    plots: dict[str, list[Beat]] = {}
    ways: list[str] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        mark, _, text = line.partition(" ")
        if mark == "==":
            beats = plots[text] = []
        elif mark in ("-", "+"):
            ways = [text]
            beats.append(Beat(ways, follows=mark == "+"))
        elif mark == "|":
            ways.append(text)
        elif line and mark != "#":
            raise ValueError(f"{file.name}, line {number}: begins with {mark!r}; allowed: ==, -, +, |, #")
    return plots


def _cast(chance: random.Random, hero: str | None, he: str | None) -> dict[str, str]:
    girl = chance.random() < 0.5 if he is None else he == "she"
    friend_is_girl = chance.random() < 0.5
    other_is_female = chance.random() < 0.5
    name = _name(chance, girl) if hero is None else hero
    friend = _name(chance, friend_is_girl)
    while friend == name:
        friend = _name(chance, friend_is_girl)
    kind, friend_kind, other = chance.sample(_ANIMALS, 3)
    sort = chance.random()
    if sort < 0.4:
        kind = "girl" if girl else "boy"
        if chance.random() < 0.5:
            friend_kind = "girl" if friend_is_girl else "boy"
    elif sort < 0.5:
        kind = chance.choice(WORDS["people"])
    adjective = chance.choice(_KINDS)
    parent, parent_is_female = chance.choice((("mom", True), ("dad", False), ("grandma", True), ("grandpa", False)))
    return {
        "name": name,
        "kind": kind,
        "adj": adjective,
        "the_hero": f"the {chance.choice(('', adjective + ' ', 'little '))}{kind}" if hero is None else name,
        "friend": friend,
        "fkind": friend_kind,
        "friend_in": with_article(f"{chance.choice(_KINDS)} {friend_kind} named {friend}"),
        "other": other,
        "an_other": with_article(f"{chance.choice(('little', 'small', 'old', 'big', 'gray'))} {other}"),
        "parent": parent,
        "parent_call": parent.capitalize(),
        "thing": chance.choice(WORDS["toys"]),
        "color": chance.choice(WORDS["colors"]),
        "place": chance.choice(WORDS["places"]),
        "day": chance.choice(WORDS["days"][:-1]),
        "grandparent": chance.choice(("grandma", "grandpa")),
        "bro": "sister" if girl else "brother",
        "one_day": chance.choice(("one day", "one morning", "at last")),
        "skill": chance.choice(WORDS["skills"]),
        **_pronouns("", girl),
        **_pronouns("f", friend_is_girl),
        **_pronouns("o", other_is_female),
        **_pronouns("p", parent_is_female),
    }


def _name(chance: random.Random, girl: bool) -> str:
    """A known name, or one that nobody has, so that names are learned as something to be repeated."""
    if chance.random() < 0.85:
        return chance.choice(_GIRLS if girl else _BOYS)
    sounds = [chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(chance.choice((1, 2, 2)))]
    return "".join([*sounds, chance.choice(("", "l", "n", "r", "s", "x"))]).capitalize()


def _pronouns(prefix: str, is_female: bool) -> dict[str, str]:
    he, him, his = ("she", "her", "her") if is_female else ("he", "him", "his")
    return {f"{prefix}he": he, f"{prefix}him": him, f"{prefix}his": his, f"{prefix}himself": f"{him}self"}


def spell(text: str) -> str:
    """Put in articles and capitals."""
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    # A sentence begins at the start, after an end mark (behind a quotation only where no "said" follows), in a quote.
    text = re.sub(r"(^|[.!?] |^\"|[ ]\")([a-z])", lambda match: match[1] + match[2].upper(), text)
    return re.sub(r"([.]\" )([a-z])", lambda match: match[1] + match[2].upper(), text)
