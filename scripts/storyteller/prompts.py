"""Questions that ask an instruct model for small stories, each with its own hero, place, trouble, words and opening.

A small model repeats itself when it is asked the same thing twice, so variety has to come from the question; and it
keeps to simple sentences when its answer already begins with some, so each answer is begun here.
"""

import random
from dataclasses import dataclass

from storyteller.words import WORDS, with_article

_VERBS = [
    "run",
    "jump",
    "sing",
    "dance",
    "hide",
    "find",
    "share",
    "climb",
    "swim",
    "build",
    "paint",
    "help",
    "bake",
    "dig",
    "laugh",
    "cry",
    "sleep",
    "wait",
    "look",
    "carry",
    "wash",
    "plant",
    "fix",
    "play",
]
_WORDS = [
    "red",
    "blue",
    "big",
    "tiny",
    "warm",
    "cold",
    "soft",
    "loud",
    "quiet",
    "shiny",
    "dark",
    "wet",
    "round",
    "sweet",
    "heavy",
    "fast",
    "slow",
    "new",
    "old",
    "yellow",
    "green",
    "sunny",
    "windy",
    "pretty",
    "dirty",
    "sticky",
]
# What happens: how the question puts it, and how the story does.
_PLOTS = (
    ("who loses a {thing}", "{day}, {he} could not find {his} {thing}."),
    ("who wants a friend", "{day}, {he} felt lonely and wanted a friend."),
    ("who is afraid of the dark", "{he} was afraid of the dark."),
    ("who breaks a {thing} and tells the truth", "{day}, {he} broke a {thing}."),
    ("who cannot sleep", "{day}, {he} could not sleep."),
    ("who gets lost and finds the way home", "{day}, {he} walked too far and got lost."),
    ("who finds a {thing}", "{day}, {he} found a {word} {thing}."),
    ("who learns to share a {thing}", "{he} had a {word} {thing} and did not want to share it."),
    ("who says sorry to a friend", "{day}, {he} was angry with {his} friend {friend}."),
    ("who helps {friend}", "{day}, {he} saw that {friend} was sad."),
    ("who makes a present for {friend}", "{day}, {he} wanted to make a present for {friend}."),
    ("who learns to {verb}", "{he} wanted to {verb}, but it was hard."),
    ("who does not listen to mom", '"Do not go too far," said {his} mom.'),
    ("who meets a {other}", "{day}, {he} met a {kind2} {other}."),
    ("who plants a seed", "{day}, {he} planted a small seed."),
    ("who is hungry", "{day}, {he} was very hungry."),
    ("who has a birthday", "It was {his} birthday."),
    ("who hears a strange noise", "{day}, {he} heard a strange noise."),
    ("who wants to fly", "{he} wanted to fly."),
    ("who makes a mess and cleans it up", "{day}, {he} made a big mess."),
    ("who is sick and gets better", "{day}, {he} was sick and had to stay in bed."),
    ("who is afraid of the water", "{he} was afraid of the water."),
    ("who builds a house", "{day}, {he} wanted to build a little house."),
    ("who loves the rain", "{he} loved the rain."),
    ("who plays with {friend}", "{day}, {he} and {friend} went out to play."),
    ("who bakes a cake with {friend}", "{day}, {he} and {friend} wanted to bake a cake."),
    ("who helps a {other}", "{day}, {he} saw a {other} that could not get out of a hole."),
    ("who sees snow", "{day}, {he} saw snow for the first time."),
    ("who looks for a {thing}", '"Where is my {thing}?" asked {friend}.'),
    ("who wants to see the moon", "{he} wanted to see the moon."),
)
_ENDINGS = (
    "The story ends happily.",
    "At the end they are friends.",
    "At the end everyone laughs.",
    "At the end they go home.",
    "At the end they share.",
    "At the end there is a surprise.",
    "At the end there is a hug.",
    "At the end somebody says thank you.",
    "At the end they eat something good.",
    "At the end {name} has learned something.",
)
# The chat template of SmolLM2-Instruct, without its system message and with an answer begun.
_CHAT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{opening}"


@dataclass(frozen=True)
class StoryPrompt:
    """A question, the first sentences of its answer, and their hero."""

    question: str
    opening: str
    name: str
    pronoun: str

    @property
    def chat(self) -> str:
        """What the instruct model reads, special tokens spelled out."""
        return _CHAT.format(question=self.question, opening=self.opening)


def story_prompts(count: int, seed: int) -> list[StoryPrompt]:
    """`count` different prompts, the same for the same seed; a longer list starts with the shorter one."""
    chance = random.Random(seed)
    prompts: dict[StoryPrompt, None] = {}
    while len(prompts) < count:
        prompts[_prompt(chance)] = None
    return list(prompts)


def _prompt(chance: random.Random) -> StoryPrompt:
    girl = chance.random() < 0.5
    name, friend = (
        chance.choice(WORDS["girls"] if girl else WORDS["boys"]),
        chance.choice(WORDS["boys"] if girl else WORDS["girls"]),
    )
    animal, other = chance.sample(WORDS["animals"], 2)
    kind, kind2, place = chance.choice(WORDS["kinds"]), chance.choice(WORDS["kinds"]), chance.choice(WORDS["places"])
    is_child = chance.random() < 0.4
    hero = f"{kind} {('girl' if girl else 'boy') if is_child else animal}"
    slots = {
        "name": name,
        "friend": friend,
        "other": other,
        "kind2": kind2,
        "thing": chance.choice(WORDS["things"]),
        "verb": chance.choice(WORDS["verbs"]),
        "word": chance.choice(WORDS["qualities"]),
        "day": chance.choice(WORDS["days"]),
        "he": "she" if girl else "he",
        "his": "her" if girl else "his",
    }
    asked, told = (part.format(**slots) for part in chance.choice(_PLOTS))
    ending = chance.choice(_ENDINGS).format(**slots)
    question = (
        f"Write a very short story for small children, 8 short sentences with simple words, about "
        f"{with_article(hero)} named {name} {asked}. {ending}"
    )
    first = chance.choice(
        (
            f"Once upon a time, there was {with_article(hero)} named {name}.",
            f"Once upon a time, {with_article(hero)} named {name} lived {place}.",
            f"There was once {with_article(hero)} named {name} who lived {place}.",
            f"{name} was {with_article(hero)}.",
            f"{name} was {with_article(hero)} who lived {place}.",
            f"{with_article(hero).capitalize()} named {name} lived {place}.",
        )
    )
    return StoryPrompt(question, f"{first} {told[0].upper()}{told[1:]}", name, slots["he"])
