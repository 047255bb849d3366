"""The card of the model that genx carries, from its numbers."""

from collections.abc import Mapping
from typing import Any

_TEXT = """---
license: apache-2.0
language: en
---

# storyteller

A very small language model that tells very small stories, in the simple English of books for small children. It comes
with genx so that `genx run` works at once, and for tests; it knows nothing else. It has {parameters} parameters in the
architecture of Llama ({layers} layers of {hidden}, {vocabulary} pieces of byte-level BPE, {positions} positions),
stored as float16. A story ends with `<|endoftext|>`, which also stands before it.

## How it was made

By `scripts/train_storyteller` of genx's repository, on one CPU core, from a seed. It learned from

- {grammar} stories that a grammar wrote (`scripts/storyteller/plots.txt`: some 60 plots of about 8 steps, each told in
  two or more ways, with a drawn cast). The grammar was written for this model and has genx's licence;
- {smollm2} stories in which one to three sentences are by SmolLM2-135M-Instruct (Apache-2.0), answering a prompt with
  `genx run -i`; their beginnings and ends are the grammar's. Asked for whole stories, it ended 15 of 64 within 220
  tokens and repeated itself in most, so only first sentences were kept, and of those only plain ones: whole, short, of
  frequent words, with no new names and no repeated triples of words. An epoch has each {repeats} times.

{steps} steps of {rows} rows of {context} tokens, {tokens} tokens in all (Muon, rate {rate}, cosine to a tenth). Of
the grammar's stories one in 40 was held out, of the others one in 10.

## How good it is

Loss on held-out stories, the end of each included:

| stories | nats a token | bits a byte | 5-gram, nats a token | 5-gram, bits a byte |
|---|---|---|---|---|
{losses}

The 5-gram model (interpolated Kneser-Ney) has counted the same stories. {count} stories, sampled at temperature
{temperature} and top-p {top_p} from five openings:

| what | generated | held-out stories |
|---|---|---|
| end within 300 tokens | {ended} | all |
| different 4-grams of words among all | {distinct} | {distinct_held_out} |
| sentences SmolLM2-135M finds likely | {likely} | 95% by definition |
| whole story learned by heart | {by_heart} | |

A sentence is likely where its mean log-probability a token, after what stands before it, is at least {threshold}, the
{percentile}th percentile of held-out sentences. The mean is {mean}, of held-out sentences {mean_held_out}.

Choices, each after {compared_tokens} tokens with its own cosine:

| vocabulary | hidden, layers | stories of the grammar, at most | held-out nats a token | bits a byte |
|---|---|---|---|---|
{compared}

So the model is the wider and deeper one, its vocabulary the larger, and its stories are as many as it reads in one
training: few stories read several times are learned by heart instead.

## Samples

Not chosen: the first that came. Prompts like its stories:

{good}

Prompts unlike them, which it turns into its stories or into nonsense:

{bad}

## Limits

English only, and only some two thousand words of it. Names, "he" and "she" get mixed up now and then, and after a
prompt unlike its stories all the time. Plots repeat, and animals do what animals cannot. On SmolLM2's own sentences, of
which it saw few, it is little better than a 5-gram model. It answers no questions and follows no instructions.
"""


def card(results: Mapping[str, Any]) -> str:
    """The text of README.md."""
    plan, made, judged = results["plan"], results["generated"], results["judged"]
    samples = [_sample(sample) for sample in results["samples"]]
    text = _TEXT.format(
        **plan,
        **{key: made[key] for key in ("count", "temperature", "top_p")},
        ended=_percent(made["ended"]),
        parameters=f"{results['parameters']:,}",
        grammar=f"{results['learned']['grammar']:,}",
        smollm2=f"{results['learned']['smollm2']:,}",
        tokens=f"{results['tokens']:,}",
        losses="\n".join(map(_losses, results["losses"])),
        distinct=_percent(made["distinct_4_grams"]),
        distinct_held_out=_percent(made["distinct_4_grams_held_out"]),
        by_heart=_percent(made["learned_by_heart"]),
        **{key: judged[key] for key in ("threshold", "percentile", "mean", "mean_held_out")},
        likely=_percent(judged["likely"]),
        compared_tokens=f"{results['compared'][0]['tokens']:,}" if results["compared"] else "0",
        compared="\n".join(map(_compared, results["compared"])),
        good="\n\n".join(samples[:5]),
        bad="\n\n".join(samples[5:]),
    )
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _losses(row: Mapping[str, Any]) -> str:
    name = "the grammar's" if row["stories"] == "grammar" else "with SmolLM2's sentences"
    values = [row[model][unit] for model in ("model", "5-gram") for unit in ("nats_per_token", "bits_per_byte")]
    return f"| {name} ({row['count']}) | " + " | ".join(f"{value:.3f}" for value in values) + " |"


def _compared(row: Mapping[str, Any]) -> str:
    return (
        f"| {row['vocabulary']} | {row['hidden']}, {row['layers']} | {row['grammar_stories']:,} | "
        f"{row['held_out_nats']:.3f} | {row['held_out_bits_per_byte']:.3f} |"
    )


def _sample(sample: Mapping[str, Any]) -> str:
    how = "greedy" if sample["seed"] is None else f"seed {sample['seed']}"
    return f"> **{sample['prompt']}**{sample['text'].rstrip()} *({how})*"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
