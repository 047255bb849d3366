"""Every published or worked-out size of cases.json, through the command, to the byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kv_size.command import kv_object

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))

# What a case calls a policy, as options of the command.
OPTIONS = {
    "ideal": ("--engine", "ideal"),
    "full": ("--engine", "full"),
    "llamacpp-iswa": ("--engine", "llama.cpp"),
    "vllm-hybrid": ("--engine", "vllm"),
    "naive-mla": ("--engine", "hf"),
    "encoder-decoder": ("--engine", "ideal"),
    "recurrent-state": ("--engine", "ideal"),
}
KNOBS = {"tp": "--tp", "n_ubatch": "--ubatch", "n_seq": "--slots", "encoder_tokens": "--encoder-tokens"}


def test_there_are_68_cases() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) == 68


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any]) -> None:
    knobs = [word for key, flag in KNOBS.items() if key in case for word in (flag, str(case[key]))]
    found = kv_object(
        "--tokens", str(case["tokens"]),
        "--batch", str(case["batch"]),
        "--kv-dtype", case["kv_dtype"],
        *OPTIONS[case["policy"]],
        *knobs,
        config=case["config"],
    )  # fmt: skip
    checked = "state_bytes" if case["policy"] == "recurrent-state" else "kv_bytes"
    assert found[checked] == case["expected_bytes"]


@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        ("mistral-7b", 1, 512 << 20),
        ("gemma-2b", 1, 72 << 20),
        ("llama-7b", 1, 2 << 30),
        ("llama-7b", 8, 16 << 30),
    ],
)
def test_the_four_sizes_of_the_specification(model: str, batch: int, expected: int) -> None:
    assert kv_object(model, "-t", "4096", "-b", str(batch), "--kv-dtype", "fp16")["kv_bytes"] == expected
