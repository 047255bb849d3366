"""The summary on stderr, --explain, and the object of --json."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from genx.cli.profile import Profile
from genx.engine.arithmetic import choose_arithmetic
from genx.kv_size.quantities import human_bytes
from tests.cli.conftest import Scripted
from tests.cli.in_process import run_genx, run_genx_at_terminal
from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1


def test_the_summary_off_a_terminal(scripted: Scripted) -> None:
    model = scripted("fox", eos_token_id=256)
    result = run_genx("run", "x", "--stats", "--threads", "1", "-m", model)
    assert result.text == "fox"
    lines = dict(line.split(": ", 1) for line in result.stderr.splitlines())
    assert lines["model"] == "model, gpt2, float32 arithmetic (auto) on cpu, 1 thread"
    assert lines["sampling"] == "greedy (default)"
    assert lines["tokens"] == "1 prompt (plain text), 4 new"
    assert lines["finished"] == "eos: the model ended its text (token 256, checkpoint)"
    number = r"[\d,]+\.\d"
    assert re.fullmatch(
        rf"first token \d+\.\d\d s, prefill {number} tokens/s, decode {number} tokens/s", lines["speed"]
    )
    assert re.fullmatch(r"peak [\d.]+ [MG]iB, cache 32\.00 KiB", lines["memory"])  # 2 x 64 numbers x 4 bytes x 64
    assert set(lines) == {"model", "sampling", "tokens", "finished", "speed", "memory"}


def test_without_stats_stderr_is_silent_off_a_terminal(scripted: Scripted) -> None:
    assert run_genx("run", "x", "-m", scripted("fox")).stderr == ""


@pytest.mark.parametrize("columns", [1, 5, 20, 60])
def test_the_summary_folds_at_a_terminal(scripted: Scripted, columns: int) -> None:
    result = run_genx_at_terminal("run", "x", "-m", scripted("fox"), columns=columns)
    assert result.stdout == b"fox\n"
    shown = _visible(result.stderr)
    assert "".join(shown.split()).count("finished") == 1 or columns < 10
    assert all(len(line.rstrip()) <= columns for line in shown.splitlines())


def test_a_terminal_of_unknown_width(scripted: Scripted) -> None:
    """rhel-lightspeed/command-line-assistant PR #421: Rich prints nothing at all at COLUMNS=0."""
    result = run_genx_at_terminal("run", "x", "-m", scripted("fox"), columns=0)
    assert "finished" in _visible(result.stderr)


def test_live_status_leaves_no_trace(scripted: Scripted) -> None:
    """What was drawn while loading is erased before the text; the cursor is shown again."""
    result = run_genx_at_terminal("run", "x", "-m", scripted("fox"))
    assert "loading model" in result.stderr
    assert "reading the prompt" in result.stderr
    assert result.stderr.count("\x1b[?25l") == result.stderr.count("\x1b[?25h") > 0
    assert result.stderr.rindex("\x1b[2K") < result.stderr.index("finished")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colour_at_a_terminal(scripted: Scripted, environment: dict[str, str], coloured: bool) -> None:
    """Textualize/rich#2924: NO_COLOR counts if it is not empty, and wins."""
    result = run_genx_at_terminal("run", "x", "-m", scripted("fox"), environment=environment)
    assert bool(re.search(r"\x1b\[[\d;]*3\dm", result.stderr)) is coloured


def test_quiet_is_silent_unless_stats_are_wanted(scripted: Scripted) -> None:
    model = scripted("fox")
    assert run_genx_at_terminal("run", "x", "-q", "-m", model).stderr == ""
    shown = run_genx_at_terminal("run", "x", "-q", "--stats", "-m", model).stderr
    assert "finished" in shown
    assert "loading" not in shown


def test_warnings_stay_on_lines_of_their_own_at_a_terminal(tmp_path: Path) -> None:
    folder = str(write_scripted(write_t1(tmp_path), [*b"abcdefgh"], context=8))
    result = run_genx_at_terminal("run", "x", "-n", "10", "--greedy", "--top-k", "3", "-m", folder, columns=200)
    assert result.stdout == b"abcdefghhh\n"
    lines = _visible(result.stderr).splitlines()
    assert "genx: warning: --greedy takes the most likely token; not used: --top-k" in lines
    assert sum(line.startswith("genx: warning: the text has grown past") for line in lines) == 1


def test_explain_names_every_setting_and_its_origin(scripted: Scripted) -> None:
    model = scripted("ab", generation_config={"temperature": 0.6, "eos_token_id": 7})
    result = run_genx("run", "x", "--explain", "--top-k", "4", "--seed", "3", "-n", "2", "--stop", "q", "-m", model)
    assert result.status == 0
    assert len(result.text) <= 2
    lines = dict(line.split(": ", 1) for line in result.stderr.splitlines())
    threads = torch.get_num_threads()
    arithmetic = choose_arithmetic("cpu", "auto", "none", "auto")
    width = 64
    parameters = 2 * 300 * width + width**2 + (12 * width**2 + 13 * width) + 2 * width
    assert lines == {
        "model": model,
        "architecture": f"gpt2, {parameters:,} parameters, context 64 tokens",
        "prompt": "plain text, 1 tokens: 120",
        "parse_special": "yes (default)",
        "device": "cpu (default)",
        "dtype": "float32 (default)",
        "threads": f"{threads} (default)",
        "weights": f"float32, {human_bytes(4 * parameters)} (default)",
        "operations": f"{arithmetic.operations}: {arithmetic.reason}",
        "do_sample": "yes (flag)",
        "temperature": "1 (default)",
        "top_k": "4 (flag)",
        "top_p": "none (default)",
        "seed": "3 (flag)",
        "max_new_tokens": "2 (flag)",
        "eos_token_ids": "7, 256 (checkpoint)",
        "pad_token_id": "none (default)",
        "stop": "'q' (flag)",
        "max_time": "none (default)",
        "use_cache": "yes (default)",
        "checkpoint": "suggests temperature 0.6",
    }


def test_explain_says_what_greedy_decoding_does_not_use(scripted: Scripted) -> None:
    shown = run_genx("run", "x", "--explain", "-n", "0", "-m", scripted("ab")).stderr
    assert "do_sample: no (default)\n" in shown
    assert "temperature: 1 (default, unused)\n" in shown


def test_json_is_one_object(scripted: Scripted) -> None:
    result = run_genx("run", "x", "--json", "-m", scripted('say "ü"\n\x9b'))
    assert result.stdout.endswith(b"}\n")
    assert result.stdout.count(b"\n") == 1
    assert "ü" in result.text
    assert "\x9b" not in result.text  # escaped, so that no terminal obeys it
    found: dict[str, Any] = json.loads(result.text)
    timings = found.pop("timings")
    assert found == {
        "id": None,
        "row": 0,
        "text": 'say "ü"\n\x9b',
        "ids": [*'say "ü"\n\x9b'.encode(), 256],
        "finish_reason": "eos",
        "prompt_tokens": 1,
        "new_tokens": 12,
        "seed": None,
        "error": None,
    }
    assert set(timings) == {"ttft_s", "prefill_tps", "decode_tps"}
    assert all(value > 0 for value in timings.values())


def test_json_of_nothing_has_no_timings(scripted: Scripted) -> None:
    """Numbers that do not exist are null, never NaN."""
    found = json.loads(run_genx("run", "x", "--json", "-n", "0", "-m", scripted("a")).text)
    assert found["timings"] == {"ttft_s": None, "prefill_tps": None, "decode_tps": None}
    assert (found["text"], found["finish_reason"]) == ("", "length")


def test_json_with_echo_and_stats(scripted: Scripted) -> None:
    result = run_genx("run", "x", "--json", "--echo", "--stats", "-m", scripted("abc"))
    assert json.loads(result.text)["text"] == "xabc"
    assert "finished: eos" in result.stderr


@pytest.mark.parametrize("flags", [[], ["--json"], ["--no-stream"]], ids=["stream", "json", "no-stream"])
def test_bad_logits_keep_the_text_and_fail(scripted: Scripted, flags: list[str]) -> None:
    """huggingface/transformers#27179: one clear line and exit code 1, in JSON too."""
    model = scripted("BCD")
    weights = load_file(Path(model, "model.safetensors"))
    weights["transformer.wpe.weight"][2] = float("nan")
    save_file(weights, Path(model, "model.safetensors"))
    result = run_genx("run", "A", "-m", model, *flags)
    assert result.status == 1
    message = "row 0 has a logit that is nan, so no token can be chosen"
    assert result.stderr.startswith(f"genx: error: {message}")
    assert result.stderr.count("\n") == 1
    if flags == ["--json"]:
        found = json.loads(result.text)
        assert (found["text"], found["finish_reason"]) == ("BC", "error")
        assert found["error"].startswith(message)
    else:
        assert result.text == "BC"


def _visible(shown: str) -> str:
    """The text that stays on the screen, roughly: escape codes and rewritten lines left out."""
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", "\n".join(line.rsplit("\r", 1)[-1] for line in shown.split("\n")))


def test_a_profile_accounts_for_the_whole_run(scripted: Scripted) -> None:
    result = run_genx("run", "x", "--profile", "-n", "3", "-m", scripted("fox"))
    assert result.text == "fox"
    lines = [line.split(": ", 1) for line in result.stderr.splitlines()]
    assert [phase for phase, _ in lines] == [
        "command line and prompt",
        "tokenizer",
        "import of torch",
        "weights",
        "prompt, to the first token",
        "2 more tokens",
        "whole run",
    ]
    seconds = [float(text.split(" s")[0]) for _, text in lines]
    assert min(seconds) >= 0
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=0.006)  # each is rounded
    assert lines[-1][1].endswith("since the program's first line")


def test_phases_by_a_clock_of_their_own() -> None:
    times = iter([3.0, 8.0])
    profile = Profile(lambda: next(times), 1.0)
    profile.mark("first")
    profile.mark_parts("second", 1.0, "third")
    assert profile.rows() == [
        ("first", "2.000 s, 29%"),
        ("second", "1.000 s, 14%"),
        ("third", "4.000 s, 57%"),
        ("whole run", "7.000 s since the program's first line"),
    ]
