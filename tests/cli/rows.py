"""A checkpoint whose text depends on its prompt, and runs of files of prompts through the program."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.cli.in_process import Result, run_genx
from tests.fixtures.models import VOCABULARY, write_bigram
from tests.fixtures.tokenizers import write_t1


def write_babbler(folder: Path, **tokenizer: Any) -> Path:
    """Write a model in which each byte leads to others by chance, so that texts differ; return the folder."""
    write_t1(folder, ["</s>"], eos_token="</s>", **tokenizer)
    head = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5))
    head[:32] -= 10  # no control characters
    head[127:256] -= 10  # and nothing beyond ASCII
    head[257:] -= 10  # nor ids without a token
    return write_bigram(folder, head / 10)


def run_rows(model: Path, *arguments: str | Path, stdin: bytes = b"") -> Result:
    """`genx run -m MODEL ARGUMENTS`, at a clock that stands still, so that files are equal to the byte."""
    return run_genx("run", "-m", str(model), *map(str, arguments), stdin=stdin, clock=lambda: 0.0)


def answers(result: Result | Path) -> list[dict[str, Any]]:
    """The objects of a file of answers, or of stdout."""
    content = result.read_text(encoding="utf-8") if isinstance(result, Path) else result.text
    return [json.loads(line) for line in content.splitlines()]


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    """Write one row a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
