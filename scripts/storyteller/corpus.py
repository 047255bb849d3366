"""Stories of two sources, cleaned and split: those of the grammar, and small ones that SmolLM2 wrote the middle of.

SmolLM2-135M's sentences are kept while they are plain: whole, short, of known words and names, and not repeating one
another. Its stories seldom end, so the ending is the grammar's.
"""

import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from storyteller.grammar import Grammar, spell
from storyteller.prompts import StoryPrompt

HELD_OUT_ONE_IN = {"grammar": 40, "smollm2": 10}
_TYPOGRAPHY = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": ".", "\n": " "})
_SENTENCE = re.compile(r'\s*((?:"[^"]*"|[^".!?])+?(?:[.!?]"?|(?<=[.!?]")))(?=\s+[^a-z\s]|\s*$)')
_PLAIN = re.compile(r"[A-Za-z ,.!?'\"-]+")
_ALWAYS_CAPITAL = {"I", "I'm", "I'll", "I've", "I'd", "Mom", "Dad", "Grandma", "Grandpa"}
_MOST_SENTENCES = 3
_RARE = 4


@dataclass(frozen=True)
class Story:
    """One paragraph and where it comes from, grammar or smollm2; stories of one key are learned from or measured on."""

    text: str
    source: str
    key: str


def grammar_stories(count: int, seed: int) -> list[Story]:
    """`count` different stories of the grammar; a longer list starts with the shorter one."""
    grammar, chance = Grammar(), random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[grammar.story(chance)] = None
    return [Story(text, "grammar", text) for text in texts]


def smollm2_stories(answers: Iterable[tuple[StoryPrompt, str]]) -> list[Story]:
    """Stories of a prompt's opening, the usable sentences of its answer and an ending; none where none is usable."""
    cleaned = [(prompt, list(sentences(clean(answer)))) for prompt, answer in answers]
    seen = Counter(word for _, parts in cleaned for word in {word for part in parts for word in _words(part)})
    known = {word for word, count in seen.items() if count >= _RARE}
    grammar = Grammar()
    told: dict[str, Story] = {}
    for prompt, parts in cleaned:
        usable = usable_sentences(prompt.opening, parts, known)
        key = " ".join(usable)
        if usable and key not in told:  # the same middle again, with other names, is no new story
            end = grammar.ending(random.Random(prompt.opening), prompt.name, prompt.pronoun)
            told[key] = Story(spell(" ".join(filter(None, [prompt.opening, *usable, end]))), "smollm2", prompt.opening)
    return list(told.values())


def clean(text: str) -> str:
    """ASCII quotes and dashes, no markup, single spaces."""
    return " ".join(re.sub(r"[*_#|~`]+", "", text.translate(_TYPOGRAPHY)).split())


def sentences(text: str) -> Iterator[str]:
    """The whole sentences at the start of `text`; what follows an unfinished or unpaired one is left."""
    place = 0
    while match := _SENTENCE.match(text, place):
        yield match[1]
        place = match.end()


def usable_sentences(opening: str, parts: Iterable[str], known: set[str]) -> list[str]:
    """The first sentences of an answer, as long as they are plain; at most three."""
    kept: list[str] = []
    names = {word for word in re.findall(r"[A-Za-z']+", opening) if word[0].isupper()} | _ALWAYS_CAPITAL
    grams = _grams(_words(opening), 3)
    for part in parts:
        words = _words(part)
        new = _grams(words, 3)
        inner = re.findall(r"(?<=[a-z,] )[A-Z][A-Za-z']*", part)
        plain = (
            _PLAIN.fullmatch(part)
            and 4 <= len(words) <= 18
            and part[0] in '"ABCDEFGHIJKLMNOPQRSTUVWXYZ'
            and part.count('"') % 2 == 0
            and known.issuperset(words)
            and names.issuperset(inner)
            and len(new) == len(set(new)) == len(set(new) - set(grams))
            and max(Counter(word for word in words if len(word) > 4).values(), default=1) == 1
            and not ("one day" in part.lower() and kept)
        )
        if not plain or len(kept) == _MOST_SENTENCES:
            break
        kept.append(part)
        grams += new
    return kept


def split(stories: Iterable[Story]) -> tuple[list[Story], list[Story]]:
    """Stories to learn from and to measure on; where one goes does not depend on the others."""
    train: list[Story] = []
    held_out: list[Story] = []
    for story in stories:
        (train if zlib.crc32(story.key.encode()) % HELD_OUT_ONE_IN[story.source] else held_out).append(story)
    return train, held_out


def write_stories(path: Path, stories: Iterable[Story]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(asdict(story)) + "\n" for story in stories)
    path.write_text("".join(lines), encoding="utf-8")


def read_stories(path: Path) -> list[Story]:
    """What `write_stories` wrote."""
    return [Story(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _grams(words: list[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(size)), strict=False))
