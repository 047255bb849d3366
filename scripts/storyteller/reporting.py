"""What is known about a trained model: its losses beside a 5-gram model's, what it writes, and samples."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import genx
from genx.checkpoint import resolve_model
from genx.core.base_model import BaseModel
from genx.tokenization import Tokenizer
from storyteller import tokenizer as own
from storyteller.corpus import Story
from storyteller.measuring import (
    Loss,
    distinct_share,
    generated_stories,
    model_loss,
    ngram_loss,
    sentence_likelihoods,
)
from storyteller.ngram import NGram
from storyteller.rows import Stories

SAMPLING = {"temperature": 0.8, "top_p": 0.95}
_SEED = 1000
_MOST_JUDGED = 60
_PERCENTILE = 5
_SAMPLES = (
    ("Once upon a time", None),
    ("Once upon a time", 1),
    ("Once upon a time", 2),
    ("One day, a little robot", 1),
    ("Lily was afraid of the dark.", 1),
    ("The captain of the spaceship pressed a button", 1),
    ("Question: What is the capital of France? Answer:", 1),
    ("It is raining", 3),
)


def measure(
    model: BaseModel, folder: Path, learned: Sequence[Story], held_out: Sequence[Story], judge: str, count: int
) -> Any:
    """All numbers of a report, as JSON takes them.

    Args:
        model: trained.
        folder: that of its tokenizer.
        learned: the stories it learned from.
        held_out: stories it never saw.
        judge: the model that says how likely sentences are; see `resolve_model`.
        count: stories to generate.
    """
    tokens = own.load_tokenizer(folder)
    ngram = NGram(Stories([story.text for story in learned], tokens).ids, tokens.get_vocab_size())
    losses = []
    for source in ("grammar", "smollm2"):
        texts = [story.text for story in held_out if story.source == source]
        if not texts:
            continue
        stories = Stories(texts, tokens)
        losses.append(
            {
                "stories": source,
                "count": len(texts),
                "model": _loss(model_loss(model, texts, stories)),
                "5-gram": _loss(ngram_loss(ngram, texts, stories)),
            }
        )
    tokenizer = genx.load_tokenizer(folder)
    end_id = tokens.token_to_id(own.END)
    assert end_id is not None
    made = list(generated_stories(model, tokenizer, count, end_id, _SEED, **SAMPLING))
    texts = [text for text, _ in made]
    known = {story.text for story in learned}
    real = random.Random(_SEED).sample([story.text for story in held_out], min(count, len(held_out)))
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "learned": Counter(story.source for story in learned),
        "losses": losses,
        "generated": {
            "count": len(made),
            **SAMPLING,
            "ended": sum(ended for _, ended in made) / len(made),
            "mean_words": sum(len(text.split()) for text in texts) / len(texts),
            "distinct_4_grams": distinct_share(texts),
            "distinct_4_grams_held_out": distinct_share(real),
            "learned_by_heart": sum(text in known for text in texts) / len(texts),
        },
        "judged": _judged(judge, real, texts),
        "samples": [_sample(model, tokenizer, prompt, seed, end_id) for prompt, seed in _SAMPLES],
    }


def compared(out: Path) -> list[dict[str, Any]]:
    """The last line of the log of each run in `out` whose name begins with cmp-, with the sizes it had."""
    rows = []
    for log in sorted(out.glob("cmp-*/log.jsonl")):
        plan = json.loads((log.parent / "state" / "state.json").read_text(encoding="utf-8"))["plan"]
        last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        sizes = ("vocabulary", "hidden", "inner", "layers", "repeats", "grammar_stories")
        rows.append({key: plan[key] for key in sizes} | last)
    return rows


def _loss(loss: Loss) -> dict[str, float]:
    return {"nats_per_token": round(loss.nats_per_token, 3), "bits_per_byte": round(loss.bits_per_byte, 3)}


def _judged(judge: str, real: Sequence[str], made: Sequence[str]) -> dict[str, float]:
    """How many generated sentences are at least as likely to the judge as most held-out ones."""
    path = resolve_model(judge)
    model, tokenizer = genx.load_model(path), genx.load_tokenizer(path)
    references = sorted(sentence_likelihoods(model, tokenizer, real[:_MOST_JUDGED]))
    threshold = references[len(references) * _PERCENTILE // 100]
    values = sentence_likelihoods(model, tokenizer, made[:_MOST_JUDGED])
    return {
        "stories": len(made[:_MOST_JUDGED]),
        "percentile": _PERCENTILE,
        "threshold": round(threshold, 3),
        "likely": round(sum(value >= threshold for value in values) / max(1, len(values)), 3),
        "mean": round(sum(values) / max(1, len(values)), 3),
        "mean_held_out": round(sum(references) / len(references), 3),
    }


def _sample(model: BaseModel, tokenizer: Tokenizer, prompt: str, seed: int | None, end_id: int) -> dict[str, Any]:
    drawn: dict[str, Any] = {} if seed is None else {**SAMPLING, "generator": torch.Generator().manual_seed(seed)}
    x = torch.tensor([tokenizer.encode(prompt)])
    out = model.generate(x, max_new_tokens=300, do_sample=seed is not None, eos_token_id=end_id, **drawn)
    text = tokenizer.decode([one for one in out[0, x.size(1) :].tolist() if one != end_id])
    return {"prompt": prompt, "seed": seed, "text": text}
