"""stdout is the model's text, byte for byte, and nothing else."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import EOS, Scripted
from tests.cli.in_process import run_genx, run_genx_at_terminal
from tests.fixtures.models import write_scripted


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[/INST] [/bold] [/] [/usr/bin]", id="ggozad/oterm#11: closing tags"),
        pytest.param("p[id]=1 list [in] [link=x]y", id="Textualize/rich#1549: words in brackets"),
        pytest.param("[a](http://x.y)", id="Textualize/rich#3448: links keep their address"),
        pytest.param("a" * 300, id="Textualize/rich#501: no wrapping at 80 columns"),
        pytest.param(":smile: a\tb\n\nc\nd  ", id="X1, X3: emoji codes, tabs, single line ends, trailing spaces"),
        pytest.param("a\x1b[2Jb\x00c\x07d\r", id="X2: control characters pass off a terminal"),
        pytest.param("é 讲 🦊 é", id="several scripts"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--no-stream"]], ids=["stream", "no-stream"])
def test_text_is_byte_exact(scripted: Scripted, text: str, flags: list[str]) -> None:
    result = run_genx("run", "x", "-n", "400", "-m", scripted(text), *flags)
    assert (result.status, result.stdout, result.stderr) == (0, text.encode(), "")


def test_no_escape_code_of_ours_off_a_terminal(scripted: Scripted) -> None:
    """ollama/ollama#16785, donatj/force-color.org#8: not even when colours are forced."""
    environment = {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm-256color"}
    result = run_genx("run", "x", "--stats", "--explain", "-m", scripted("hi"), environment=environment)
    assert result.stdout == b"hi"
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stderr  # huggingface/transformers#44303: no bar either


@pytest.mark.parametrize(("stdout_is_terminal", "stderr_is_terminal"), [(True, True), (True, False), (False, True)])
def test_talk_never_reaches_stdout(scripted: Scripted, stdout_is_terminal: bool, stderr_is_terminal: bool) -> None:
    """ollama/ollama#6120: spinner and prompt marks in files."""
    result = run_genx_at_terminal(
        "run",
        "x",
        "-m",
        scripted("fox\n"),
        stdout_is_terminal=stdout_is_terminal,
        stderr_is_terminal=stderr_is_terminal,
    )
    assert result.stdout == b"fox\n"
    assert ("finished" in result.stderr) is stderr_is_terminal


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a\x1b]8;;http://x\x07b", b"a^[]8;;http://x^Gb\n"),
        ("a\x9bc\x7f\r\n", b"a\\x9bc^?^M\n"),
        ("tab\tand\nline\n", b"tab\tand\nline\n"),
        ("no final newline", b"no final newline\n"),
        (":smile: [red]x[/]", b":smile: [red]x[/]\n"),
    ],
)
def test_control_characters_are_shown_on_a_terminal(scripted: Scripted, said: str, shown: bytes) -> None:
    """ggml-org/llama.cpp#28969, X2: the model's text cannot drive the terminal; a final newline is added if missing."""
    model = scripted(said)
    assert run_genx_at_terminal("run", "x", "-m", model).stdout == shown
    assert run_genx("run", "x", "-m", model).stdout == said.encode()


def test_wide_characters_get_no_stray_line_ends(scripted: Scripted) -> None:
    """ollama/ollama#1275: 40 wide characters in 20 columns."""
    text = "讲" * 40
    result = run_genx_at_terminal("run", "x", "-n", "200", "-m", scripted(text), columns=20)
    assert result.stdout == text.encode() + b"\n"


def test_long_text_is_never_repeated(scripted: Scripted) -> None:
    """Textualize/rich#3263: more lines than the terminal has rows; each is written once."""
    lines = "".join(f"line {number}\n" for number in range(60))
    assert run_genx_at_terminal("run", "x", "-n", "900", "-m", scripted(lines)).stdout == lines.encode()


def test_special_tokens_are_left_out_unless_asked_for(scripted: Scripted) -> None:
    """vllm-project/vllm PR #1044: one in the middle, and the end token."""
    model = scripted([*b"a", EOS + 1, *b"b", EOS], added=["<mid>"])
    assert run_genx("run", "x", "-m", model).text == "ab"
    assert run_genx("run", "x", "-m", model, "--special").text == "a<mid>b</s>"


def test_an_id_that_the_tokenizer_does_not_know_prints_nothing(scripted: Scripted) -> None:
    """pegainfer-project/pegainfer#673, X5: the head is wider than the tokenizer."""
    result = run_genx("run", "x", "-m", scripted([*b"a", 280, *b"b", EOS]))
    assert (result.status, result.text) == (0, "ab")


def test_echo_prints_the_prompt_as_the_model_reads_it(scripted: Scripted) -> None:
    model = scripted("bc")
    assert run_genx("run", "a", "--echo", "-m", model).text == "abc"
    assert run_genx("run", "a", "--echo", "-n", "0", "-m", model).text == "a"
    assert run_genx("run", "a", "--echo", "--no-stream", "-m", model).text == "abc"


def test_no_new_tokens_print_nothing(scripted: Scripted) -> None:
    result = run_genx("run", "x", "-n", "0", "-m", scripted("abc"))
    assert (result.status, result.stdout, result.stderr) == (0, b"", "")


def test_text_streams_before_the_run_ends(scripted: Scripted) -> None:
    """huggingface/transformers PR #22664 and #36708: neither CJK nor a long word waits for a space."""

    class Spy:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []
            self.flushed = 0

        def write(self, piece: bytes) -> int:
            self.pieces.append(piece)
            return len(piece)

        def flush(self) -> None:
            self.flushed += 1

    spy = Spy()
    run_genx("run", "x", "-n", "100", "-m", scripted("讲讲" + "a" * 40), stdout=spy)  # type: ignore[arg-type]
    assert spy.pieces == [*["讲".encode()] * 2, *[b"a"] * 40]
    assert spy.flushed == len(spy.pieces)


def test_ids_without_a_tokenizer(tmp_path: Path) -> None:
    """Ids in, ids out."""
    folder = str(write_scripted(tmp_path, [7, 8, 9], prompt_tokens=3, eos_token_id=9))
    assert run_genx("run", "--ids", "5,6,7", "-m", folder).text == "7,8"
    result = run_genx("run", "--ids", "5 6 7", "-m", folder, "--json")
    assert json.loads(result.text)["ids"] == [7, 8, 9]
    assert json.loads(result.text)["text"] is None
    refused = run_genx("run", "--ids", "5,6,7", "-m", folder, "--stop", "x")
    assert (refused.status, refused.stdout) == (2, b"")
    assert "--stop needs a tokenizer" in refused.stderr


def test_ids_with_a_tokenizer_give_text(scripted: Scripted) -> None:
    assert run_genx("run", "--ids", "120", "-m", scripted("abc")).text == "abc"
