"""The steps of scripts/train_storyteller, each from the files of the one before."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from genx import load_model
from storyteller import corpus
from storyteller.card import card
from storyteller.measuring import model_loss
from storyteller.prompts import story_prompts
from storyteller.reporting import SAMPLING, compared, measure
from storyteller.rows import Stories
from storyteller.tokenizer import END, load_tokenizer, save_tokenizer, train_tokenizer
from storyteller.training import Plan, Training

_TRAIN, _HELD_OUT = "train.jsonl", "held-out.jsonl"
_STEPS_BETWEEN = 100


def make_prompts(out: Path, count: int, seed: int) -> None:
    """Write prompts.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [{"id": number, "prompt": prompt.chat} for number, prompt in enumerate(story_prompts(count, seed))]
    (out / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write(out: Path, writer: str, seed: int) -> int:
    """Answer prompts.jsonl into answers.jsonl with `genx run`, going on where an earlier call was stopped."""
    command = [sys.executable, "-m", "genx", "run", "-m", writer, "--raw", "--resume", "--unordered"]
    command += ["-i", str(out / "prompts.jsonl"), "-o", str(out / "answers.jsonl")]
    command += ["-n", "64", "--temperature", "0.6", "--seed", str(seed), "--batch-size", "16", "--quantize", "int8"]
    return subprocess.run(command, check=False).returncode


def make_corpus(out: Path, answers: Sequence[Path] | None, count: int, seed: int) -> None:
    """Write train.jsonl and held-out.jsonl: `count` stories of the grammar, and those that the answers give."""
    files = [out / "answers.jsonl"] if answers is None else answers
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    prompts = story_prompts(max((row["id"] for row in rows), default=0) + 1, seed)
    rows.sort(key=lambda row: row["id"])
    written = corpus.smollm2_stories((prompts[row["id"]], row["text"]) for row in rows if row["error"] is None)
    grammar = corpus.grammar_stories(count, seed)
    learn, measure = map(list, zip(corpus.split(written), corpus.split(grammar), strict=True))
    corpus.write_stories(out / _TRAIN, [story for stories in learn for story in stories])
    corpus.write_stories(out / _HELD_OUT, [story for stories in measure for story in stories])
    say(f"{len(rows)} answers gave {len(written)} stories; with {len(grammar)} of the grammar: {out / _TRAIN}")


def train(out: Path, name: str, plan: Plan, minutes: float | None) -> None:
    """Train the tokenizer and the model `name`, or go on with it; the losses are appended to log.jsonl."""
    folder = out / name
    stories = corpus.read_stories(out / _TRAIN)
    learn = [story.text for story in stories if story.source == "smollm2" for _ in range(plan.repeats)]
    learn += [story.text for story in stories if story.source == "grammar"][: plan.grammar_stories]
    if not (folder / "tokenizer.json").is_file():
        save_tokenizer(train_tokenizer(learn, plan.vocabulary), folder, plan.positions)
    tokenizer = load_tokenizer(folder)
    end_id = tokenizer.token_to_id(END)
    assert end_id is not None
    training = Training(plan, Stories(learn, tokenizer), end_id)
    state = folder / "state"
    if state.is_dir():
        training.resume(state)
    texts = [story.text for story in corpus.read_stories(out / _HELD_OUT)]
    texts = random.Random(plan.seed).sample(texts, min(200, len(texts)))
    measured = Stories(texts, tokenizer)
    began = time.monotonic()
    while not training.is_over and (minutes is None or time.monotonic() - began < 60 * minutes):
        losses = list(training.run(_STEPS_BETWEEN))
        training.save(state)
        loss = model_loss(training.model, texts, measured)
        record = {
            "step": training.step,
            "tokens": training.tokens,
            "train_nats": round(sum(losses) / len(losses), 4),
            "held_out_nats": round(loss.nats_per_token, 4),
            "held_out_bits_per_byte": round(loss.bits_per_byte, 4),
        }
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
        say(json.dumps(record))


def report(out: Path, name: str, judge: str, count: int) -> None:
    """Measure the model `name` into its report.json, by `count` stories that it generates."""
    folder = out / name
    state = json.loads((folder / "state" / "state.json").read_text(encoding="utf-8"))
    model = load_model(folder / "state")
    learned, held_out = corpus.read_stories(out / _TRAIN), corpus.read_stories(out / _HELD_OUT)
    results = {**state, **measure(model, folder, learned, held_out, judge, count), "compared": compared(out)}
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    say(text)


def package(out: Path, name: str, target: Path) -> None:
    """Write the model `name` as float16 to `target`, with its tokenizer, sampling values, numbers and card."""
    folder = out / name
    model = load_model(folder / "state", dtype=torch.float16)
    model.save(target)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(folder / file, target / file)
    end_id = load_tokenizer(folder).token_to_id(END)
    generation = {"bos_token_id": end_id, "eos_token_id": end_id, "pad_token_id": end_id, "do_sample": True, **SAMPLING}
    (target / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    results = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (target / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (target / "README.md").write_text(card(results), encoding="utf-8")


def say(text: str) -> None:
    """To the person who watches."""
    print(text, file=sys.stderr, flush=True)
