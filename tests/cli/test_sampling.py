"""Sampling from the command line: the rules, the seed, and the library's own answer."""

import json
from pathlib import Path

import pytest
import torch

from genx import load_model
from tests.cli.conftest import Scripted
from tests.cli.in_process import run_genx
from tests.fixtures.models import VOCABULARY, write_bigram
from tests.fixtures.tokenizers import write_t1


@pytest.fixture
def noisy(tmp_path: Path) -> str:
    """A model with many likely continuations."""
    generator = torch.Generator().manual_seed(3)
    head = torch.randn(VOCABULARY, VOCABULARY, generator=generator) / 10
    suggested = {"do_sample": True, "temperature": 0.5, "top_p": 0.9}
    return str(write_bigram(write_t1(tmp_path), head, generation_config=suggested))


def _ids(model: str, *arguments: str) -> list[int]:
    result = run_genx("run", "ab", "-n", "20", "--json", "-m", model, *arguments)
    assert (result.status, result.stderr) == (0, "")
    ids: list[int] = json.loads(result.text)["ids"]
    return ids


def test_a_seed_gives_what_manual_seed_and_generate_give(noisy: str) -> None:
    model = load_model(noisy)
    for flags, sampling in (
        (["--sample"], {}),
        (["--temperature", "2"], {"temperature": 2}),  # Vision-CAIR/MiniGPT-4#200: 2 is 2.0
        (["--temp", "2.0"], {"temperature": 2.0}),
        (
            ["--top-k", "100000"],
            {"top_k": 100000},
        ),  # TransformerLensOrg/TransformerLens PR #1347
        (["--top-p", "0.9"], {"top_p": 0.9}),
    ):
        torch.manual_seed(7)
        expected = model.generate(torch.tensor([[*b"ab"]]), 20, do_sample=True, **sampling)
        assert _ids(noisy, "--seed", "7", *flags) == expected[0, 2:].tolist()


def test_greedy_is_the_default_and_a_seed_alone_changes_nothing(noisy: str) -> None:
    greedy = load_model(noisy).generate(torch.tensor([[*b"ab"]]), 20, do_sample=False)[0, 2:].tolist()
    for flags in ([], ["--seed", "7"], ["--greedy"], ["--no-do-sample"], ["--temperature", "0"], ["--top-k", "1"]):
        assert _ids(noisy, *flags) == greedy


def test_a_tiny_top_p_and_a_tiny_temperature_are_greedy(noisy: str) -> None:
    """ml-explore/mlx-lm PR #1912, huggingface/transformers#36896."""
    greedy = _ids(noisy)
    for flags in (["--top-p", "1e-8"], ["--temperature", "1e-45"], ["--temperature", "1e-8"]):
        assert _ids(noisy, *flags) == greedy


def test_a_drawn_seed_is_shown_and_repeats_the_text(noisy: str) -> None:
    first = json.loads(run_genx("run", "ab", "--do-sample", "-n", "20", "--json", "-m", noisy).text)
    assert _ids(noisy, "--sample", "--seed", str(first["seed"])) == first["ids"]
    again = json.loads(run_genx("run", "ab", "--sample", "-n", "20", "--json", "-m", noisy).text)
    assert again["seed"] != first["seed"]
    assert json.loads(run_genx("run", "ab", "-n", "1", "--json", "-m", noisy).text)["seed"] is None


def test_greedy_wins_and_names_unused_flags_once(noisy: str) -> None:
    result = run_genx("run", "ab", "-n", "20", "--json", "-m", noisy, "--greedy", "--temp", "0.7", "--top-k", "5")
    assert json.loads(result.text)["ids"] == _ids(noisy)
    assert result.stderr == ("genx: warning: --greedy takes the most likely token; not used: --temperature, --top-k\n")


def test_the_checkpoint_s_sampling_is_named_and_used_on_demand(noisy: str) -> None:
    ignored = run_genx("run", "ab", "-n", "1", "--stats", "-m", noisy).stderr
    assert "sampling: greedy (default)\n" in ignored
    assert (
        "checkpoint: suggests do_sample true, temperature 0.5, top_p 0.9; --checkpoint-sampling uses that\n" in ignored
    )
    used = run_genx("run", "ab", "-n", "1", "--stats", "--checkpoint-sampling", "--seed", "4", "-m", noisy).stderr
    assert "sampling: temperature 0.5 (checkpoint), top-p 0.9 (checkpoint), seed 4 (flag)\n" in used
    assert "suggests" not in used
    assert _ids(noisy, "--checkpoint-sampling", "--seed", "4") == _ids(
        noisy, "--temperature", "0.5", "--top-p", "0.9", "--seed", "4"
    )


def test_a_checkpoint_with_both_filters(scripted: Scripted) -> None:
    model = scripted("a", generation_config={"do_sample": True, "top_k": 20, "top_p": 0.9})
    result = run_genx("run", "x", "--checkpoint-sampling", "-m", model)
    assert result.status == 2
    assert result.stderr == (
        "genx: error: --checkpoint-sampling finds both top_k (20) and top_p (0.9) in generation_config.json; "
        "allowed: one of them; --top-k 20 drops top_p, --top-p 0.9 drops top_k\n"
    )
    assert run_genx("run", "x", "--checkpoint-sampling", "--top-k", "20", "-m", model).status == 0


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there(noisy: str, device: str) -> None:
    there = torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available()
    if there:
        pytest.skip(f"{device} is here")
    result = run_genx("run", "x", "--device", device, "-m", noisy)
    assert (result.status, result.stdout) == (2, b"")
    assert result.stderr.startswith(f"genx: error: --device is '{device}', which torch cannot use here; allowed: cpu")


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_the_dtype_given_counts_and_is_said(scripted: Scripted, dtype: str) -> None:
    """zai-org/GLM-4#570, huggingface/text-generation-inference#1104."""
    result = run_genx("run", "x", "--stats", "--dtype", dtype, "-m", scripted("fox", torch_dtype="bfloat16"))
    assert result.text == "fox"
    said = {"auto": "float32 arithmetic (auto)"}.get(dtype, f"{dtype} arithmetic")
    assert f", {said} on cpu, " in result.stderr


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_are_obeyed_reported_and_change_no_text(scripted: Scripted, threads: str) -> None:
    """abetlen/llama-cpp-python#89, ggml-org/llama.cpp#163."""
    before = torch.get_num_threads()
    try:
        result = run_genx("run", "x", "--stats", "--threads", threads, "-m", scripted("fox"))
        assert torch.get_num_threads() == int(threads)
    finally:
        torch.set_num_threads(before)
    assert result.text == "fox"
    assert f" on cpu, {threads} thread{'s' if threads != '1' else ''}\n" in result.stderr
