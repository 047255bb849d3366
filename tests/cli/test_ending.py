"""What ends a text: the checkpoint's ids, stop texts, the number of tokens, the time."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import EOS, Scripted
from tests.cli.in_process import run_genx
from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1


def _ended(*arguments: str) -> tuple[str, str]:
    result = run_genx("run", "x", "--json", *arguments)
    assert result.stderr == ""
    found = json.loads(result.text)
    return found["text"], found["finish_reason"]


def test_ids_of_generation_config_end_the_text(scripted: Scripted) -> None:
    """vllm-project/vllm#4180: a list there, not only the tokenizer's own."""
    model = scripted([*b"ab", 9, *b"c"], generation_config={"eos_token_id": [7, 9]})
    assert _ended("-m", model) == ("ab", "eos")


def test_the_tokenizer_s_end_still_counts(scripted: Scripted) -> None:
    """Blaizzy/mlx-vlm PR #2112: generation_config names another id."""
    model = scripted([*b"ab", EOS, *b"c"], generation_config={"eos_token_id": 7})
    assert _ended("-m", model) == ("ab", "eos")


def test_an_id_given_replaces_the_checkpoint_s(scripted: Scripted) -> None:
    model = scripted([*b"ab", EOS, *b"cd", 9, *b"e"])
    assert _ended("-m", model, "--eos-token-id", "9") == ("abcd", "eos")
    assert _ended("-m", model, "--eos-token-id", "9", "--eos-token-id", "98") == ("a", "eos")
    assert _ended("-m", model, "--ignore-eos", "-n", "5") == ("abcd", "length")


def test_a_stop_text_adds_to_the_ends(scripted: Scripted) -> None:
    """ollama/ollama#4524: it does not switch off the model's own."""
    assert _ended("-m", scripted("ab"), "--stop", "z") == ("ab", "eos")


def test_a_stop_that_is_a_special_token(scripted: Scripted) -> None:
    """abetlen/llama-cpp-python#1360: such tokens are not in the text, yet they stop it."""
    model = scripted([*b"ab", EOS + 1, *b"c"], added=["<|eot|>"])
    assert _ended("-m", model, "--stop", "<|eot|>") == ("ab", "stop")
    assert _ended("-m", model, "--stop", "<|eot|>", "--special") == ("ab", "stop")


def test_a_stop_inside_a_token(scripted: Scripted) -> None:
    """vllm-project/vllm PR #3672: what follows it in the token is dropped too."""
    model = scripted([*b"a ", 256, *b"b"], pieces=["stop!"])
    assert _ended("-m", model, "--stop", "stop") == ("a ", "stop")


@pytest.mark.parametrize(
    ("said", "stop", "text"),
    [
        pytest.param("ABCDEFG", "DEFG", "ABC", id="vllm-project/vllm#3574: no part of it leaks"),
        pytest.param("a🦊\nb", "🦊\n", "a", id="abetlen/llama-cpp-python#372: split inside a character"),
        pytest.param("DEFDEFG!", "DEFG", "DEF", id="a beginning that comes to nothing"),
        pytest.param("aab", "ab", "a", id="overlap with itself"),
    ],
)
def test_text_ends_just_before_the_stop(scripted: Scripted, said: str, stop: str, text: str) -> None:
    """abetlen/llama-cpp-python#8: the same streamed, at once and in JSON."""
    model = scripted(said)
    assert _ended("-m", model, "--stop", stop) == (text, "stop")
    for flags in ([], ["--no-stream"]):
        result = run_genx("run", "x", "-m", model, "--stop", stop, *flags)
        assert (result.status, result.stdout) == (0, text.encode())


def test_a_held_back_beginning_is_printed_at_the_end(scripted: Scripted) -> None:
    assert _ended("-m", scripted("abcDE"), "--stop", "DEFG") == ("abcDE", "eos")
    assert _ended("-m", scripted("abcDE"), "--stop", "DEFG", "-n", "4") == ("abcD", "length")


def test_the_first_of_several_stops_counts(scripted: Scripted) -> None:
    assert _ended("-m", scripted("one, two. three"), "--stop", ".", "--stop", ",") == ("one", "stop")


def test_ids_outside_the_embedding_count_for_nothing(scripted: Scripted) -> None:
    """huggingface/transformers#22520, #23401: pad ids of -1, or beyond the vocabulary."""
    for pad in (-1, 300, None):
        model = scripted("ab", generation_config={"pad_token_id": pad, "eos_token_id": [-1, 999]})
        assert _ended("-m", model) == ("ab", "eos")
    assert _ended("-m", model, "--pad-token-id", "3") == ("ab", "eos")
    refused = run_genx("run", "x", "-m", model, "--pad-token-id", "300")
    assert (refused.status, refused.stdout) == (2, b"")
    assert refused.stderr == "genx: error: --pad-token-id is 300; allowed: a token id from 0 to 299\n"


def test_the_default_limit_is_256_new_tokens(tmp_path: Path) -> None:
    folder = str(write_scripted(write_t1(tmp_path), [65] * 300, context=320))
    assert run_genx("run", "x", "-m", folder).text == "A" * 256
    limited = run_genx("run", "x", "-m", folder, "--stats").stderr
    assert "finished: length: the limit of 256 new tokens (default); -n N sets another\n" in limited


def test_time_ends_a_text(scripted: Scripted) -> None:
    """The clock is asked twice a step: at the token, and whether the time is over."""
    ticks = iter(range(1000))
    result = run_genx("run", "x", "--max-time", "7", "--stats", "-m", scripted("a" * 50), clock=lambda: next(ticks))
    assert result.status == 0
    assert 1 <= len(result.text) <= 7
    assert "finished: length: the limit of 7 seconds (--max-time)\n" in result.stderr


def test_text_that_grows_past_the_context_goes_on_and_says_so_once(tmp_path: Path) -> None:
    """huggingface/transformers#1749: the window of the specification; its last position decides from then on."""
    folder = str(write_scripted(write_t1(tmp_path), [*b"abcdefgh"], context=8))
    result = run_genx("run", "x", "-n", "20", "-m", folder)
    assert (result.status, result.text) == (0, "abcdefgh" + "h" * 12)
    assert result.stderr == (
        "genx: warning: the text has grown past the model's context of 8 tokens; "
        "from here on the model sees the last 8 only\n"
    )


@pytest.mark.parametrize("cache", ["--cache", "--no-cache", "--use-cache", "--no-use-cache"])
def test_the_cache_does_not_change_the_text(scripted: Scripted, cache: str) -> None:
    result = run_genx("run", "x", cache, "--stats", "-m", scripted("fox"))
    assert result.text == "fox"
    assert ("cache off" in result.stderr) is ("no" in cache)
