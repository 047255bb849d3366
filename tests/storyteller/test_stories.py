"""What the stories are made of: grammar, prompts, cleaning and the n-gram model they are measured with."""

import itertools
import random
import re

import pytest

from storyteller.corpus import clean, grammar_stories, sentences, smollm2_stories, split, usable_sentences
from storyteller.grammar import Grammar, read_plots
from storyteller.ngram import NGram
from storyteller.prompts import story_prompts
from tests.storyteller.conftest import SCRIPTS


def test_a_seed_makes_the_same_stories_and_a_longer_list_begins_with_the_shorter() -> None:
    stories = grammar_stories(30, seed=5)
    assert stories == grammar_stories(50, seed=5)[:30]
    assert stories != grammar_stories(30, seed=6)
    assert len({story.text for story in stories}) == 30


def test_stories_are_plain_sentences() -> None:
    for story in grammar_stories(500, seed=1):
        assert re.fullmatch(r"[A-Za-z ,.!?'\"]+", story.text), story.text
        assert story.text[0].isupper()
        assert story.text.count('"') % 2 == 0
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]|[.!?] [a-z](?![^\"]*\")|  ", story.text), story.text


@pytest.mark.parametrize("name", ["plots.txt", "openings.txt"])
def test_a_beat_that_follows_has_as_many_ways_as_the_one_before(name: str) -> None:
    for plot, beats in read_plots(SCRIPTS / "storyteller" / name).items():
        assert beats, plot
        assert not beats[0].follows, plot
        for before, beat in itertools.pairwise(beats):
            assert not beat.follows or len(beat.ways) == len(before.ways), (plot, beat)


def test_prompts_differ_and_their_answers_are_begun() -> None:
    prompts = story_prompts(200, seed=1)
    assert prompts == story_prompts(300, seed=1)[:200]
    assert len({prompt.chat for prompt in prompts}) == 200
    for prompt in prompts:
        assert prompt.name in prompt.opening
        assert prompt.chat.endswith(f"<|im_start|>assistant\n{prompt.opening}")


def test_cleaning() -> None:
    assert clean("**One** day\n\n“Oh,” said Sam…  It’s") == 'One day "Oh," said Sam. It\'s'


def test_only_whole_sentences_are_taken() -> None:
    text = 'He ran. "Where is it?" asked Tom. "Here!" She said, "No." And then he'
    assert list(sentences(text)) == ["He ran.", '"Where is it?" asked Tom.', '"Here!"', 'She said, "No."']


@pytest.mark.parametrize(
    "sentence",
    [
        "He saw Barbara by the old tree.",  # a name that the opening does not have
        "He was happy happy happy and happy.",
        "He ran.",  # too short
        "He went to the 2 big trees.",
        'He said, "come to the tree.',
        "He contemplated the big old tree.",  # a rare word
        "A young dog named Sam was happy.",  # the opening again
    ],
)
def test_sentences_that_are_not_plain_end_a_story(sentence: str) -> None:
    known = set("he saw by the old tree was happy went to big trees said come a young dog named sam and ran".split())  # noqa: SIM905
    good = "He went to the old tree."
    assert usable_sentences("A young dog named Sam ran.", [good, sentence, good], known) == [good]


def test_stories_with_smollm2s_sentences_begin_and_end_with_the_grammar() -> None:
    prompts = story_prompts(8, seed=1)
    answers = [(prompt, " Then a big cat came to the house. It was") for prompt in prompts]
    (story,) = smollm2_stories(answers)  # the same middle again is no new story
    ending = Grammar().ending(random.Random(prompts[0].opening), prompts[0].name, prompts[0].pronoun)
    assert story.text == f"{prompts[0].opening} Then a big cat came to the house. {ending}".strip()


def test_where_a_story_goes_does_not_depend_on_the_others() -> None:
    stories = grammar_stories(400, seed=2)
    train, held_out = split(stories)
    assert 0 < len(held_out) < 30
    assert [split([story])[1] for story in held_out] == [[story] for story in held_out]
    assert {story.text for story in train}.isdisjoint(story.text for story in held_out)


def test_an_ngram_model_is_a_distribution_and_knows_what_it_counted() -> None:
    chance = random.Random(0)
    texts = [[0, *(chance.randrange(1, 7) for _ in range(9)), 0] for _ in range(40)]
    model = NGram(texts, vocabulary=9, order=4)
    for before in ([0], [0, 3, 2], [5, 5, 5, 5], [8]):
        assert sum(model.probability(before, token) for token in range(9)) == pytest.approx(1)
    assert model.nats(texts[0]) < NGram(texts[1:], 9, 4).nats(texts[0])
