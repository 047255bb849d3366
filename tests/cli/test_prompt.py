"""Where the prompt comes from, and which ids it becomes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Scripted
from tests.cli.in_process import Result, run_genx
from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1

Ask = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(write_scripted(write_t1(tmp_path / "model", ["</s>"], eos_token="</s>"), []))


@pytest.fixture
def prompt_bytes(folder: str) -> Callable[..., bytes]:
    """The prompt that the model reads, as bytes: T1's ids are bytes."""

    def read(*arguments: str, stdin: bytes = b"") -> bytes:
        result = run_genx("run", "-n", "0", "--echo", *arguments, "-m", folder, stdin=stdin)
        assert (result.status, result.stderr) == (0, "")
        return result.stdout

    return read


Read = Callable[..., bytes]


def test_argument_stdin_and_file_say_the_same(prompt_bytes: Read, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("curly “quotes” é".encode())
    for arguments, stdin in (
        (["curly “quotes” é"], b"not read"),
        ([], "curly “quotes” é".encode()),
        (["-"], "curly “quotes” é".encode()),
        (["-f", str(tmp_path / "p.txt")], b"not read"),
        (["-f", "-"], "curly “quotes” é".encode()),
    ):
        assert prompt_bytes(*arguments, stdin=stdin) == "curly “quotes” é".encode()


def test_with_a_prompt_stdin_is_not_read(scripted: Scripted) -> None:
    """simonw/llm#153: the argument is the prompt; stdin counts only without one."""
    found = json.loads(run_genx("run", "y", "--json", "-m", scripted("ok"), stdin=b"x" * 9).text)
    assert (found["prompt_tokens"], found["text"]) == (1, "ok")


def test_stdin_is_one_prompt(prompt_bytes: Read) -> None:
    """ollama/ollama#568: lines are not prompts of their own."""
    assert prompt_bytes(stdin=b"a\nb\n") == b"a\nb"


@pytest.mark.parametrize(
    ("content", "read", "kept"),
    [
        (b"ab", b"ab", b"ab"),
        (b"ab\n", b"ab", b"ab\n"),
        (b"ab\n\n", b"ab\n", b"ab\n\n"),
        (b"ab\r\n", b"ab", b"ab\r\n"),
        (b"a\r\nb\r", b"a\r\nb\r", b"a\r\nb\r"),
    ],
)
def test_one_final_newline_is_dropped(
    prompt_bytes: Read, tmp_path: Path, content: bytes, read: bytes, kept: bytes
) -> None:
    """ggml-org/llama.cpp#1444: one, from stdin and files alike, unless it is to be kept."""
    (tmp_path / "p.txt").write_bytes(content)
    for source, stdin in (([], content), (["-f", str(tmp_path / "p.txt")], b"")):
        assert prompt_bytes(*source, stdin=stdin) == read
        assert prompt_bytes(*source, "--keep-newline", stdin=stdin) == kept


def test_backslashes_stay(prompt_bytes: Read) -> None:
    """ggml-org/llama.cpp PR #1311, Blaizzy/mlx-vlm PR #403: no escape is processed, no text is harmed."""
    assert prompt_bytes("C:\\new\\table é讲\\n") == "C:\\new\\table é讲\\n".encode()


def test_one_byte_order_mark_is_dropped(prompt_bytes: Read) -> None:
    """microsoft/playwright-cli#274."""
    assert prompt_bytes(stdin=b"\xef\xbb\xbfab") == b"ab"
    assert prompt_bytes(stdin=b"\xef\xbb\xbf\xef\xbb\xbfab") == b"\xef\xbb\xbfab"


def test_bytes_that_are_no_utf8(folder: str, tmp_path: Path) -> None:
    """simonw/llm#768, #225: refused with the offset, on one line."""
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfsmart \x96 dash")
    for arguments, stdin, said in (
        ([], b"a\xffb", "stdin is not UTF-8: byte 1 is 0xff"),
        (["-f", str(tmp_path / "p.txt")], b"", f"the file {tmp_path}/p.txt is not UTF-8: byte 9 is 0x96"),
    ):
        result = run_genx("run", *arguments, "-m", folder, stdin=stdin)
        assert (result.status, result.stdout) == (2, b"")
        assert result.stderr == f"genx: error: {said}; convert it first, for instance by iconv\n"


def test_a_lone_surrogate_is_refused(folder: str) -> None:
    """huggingface/transformers PR #43459: as an undecodable argument arrives from the shell."""
    result = run_genx("run", "a\udcff", "-m", folder)
    assert (result.status, result.stderr) == (
        2,
        "genx: error: PROMPT is not UTF-8 from character 1 on; give UTF-8 text\n",
    )


def test_a_file_that_cannot_be_read(folder: str, tmp_path: Path) -> None:
    for file, reason in ((tmp_path / "absent", "No such file or directory"), (tmp_path, "Is a directory")):
        result = run_genx("run", "-f", str(file), "-m", folder)
        assert (result.status, result.stdout) == (2, b"")
        assert result.stderr == f"genx: error: the file {file} cannot be read: {reason}; give a text file in UTF-8\n"


@pytest.mark.parametrize("source", [["PROMPT", "--file"], ["PROMPT", "--ids"], ["--file", "--ids"]])
def test_two_prompts_are_refused(source: Sequence[str]) -> None:
    arguments = {"PROMPT": ["x"], "--file": ["-f", "p.txt"], "--ids": ["--ids", "5"]}
    result = run_genx("run", *arguments[source[0]], *arguments[source[1]], "-m", "nowhere")
    assert result.status == 2
    assert result.stderr == (
        f"genx: error: {source[0]} and {source[1]} are both given; allowed: one of them; drop the other\n"
    )


@pytest.mark.parametrize("prompt", [[""], []], ids=["argument", "stdin"])
def test_an_empty_prompt_starts_from_bos(tmp_path: Path, prompt: list[str]) -> None:
    """huggingface/transformers#3678, ggml-org/llama.cpp#2716."""
    folder = str(write_scripted(write_t1(tmp_path, ["<s>"], bos_token="<s>"), [*b"ok"]))
    result = run_genx("run", *prompt, "-n", "2", "--echo", "--special", "-m", folder)
    assert (result.status, result.text) == (0, "<s>ok")


def test_an_empty_prompt_starts_from_the_bos_of_config_json(tmp_path: Path) -> None:
    folder = str(write_scripted(write_t1(tmp_path), [*b"ok"], bos_token_id=65))
    assert run_genx("run", "", "-n", "2", "--echo", "-m", folder).text == "Aok"


def test_an_empty_prompt_without_bos_is_refused(folder: str) -> None:
    """ggml-org/llama.cpp#8438."""
    result = run_genx("run", "", "-m", folder)
    assert (result.status, result.stdout) == (2, b"")
    assert result.stderr == (
        "genx: error: the prompt is empty and the model has no BOS id to start from; give some text\n"
    )


def test_the_terminal_is_told_how_to_end_a_prompt(folder: str) -> None:
    result = run_genx("run", "-n", "0", "-m", folder, stdin=b"typed\n", stdin_is_terminal=True)
    assert (result.status, result.stderr) == (
        0,
        "genx: reading the prompt from the terminal; Ctrl-D on a line of its own ends it\n",
    )


@pytest.mark.parametrize(("tokens", "status"), [(7, 0), (8, 0), (9, 2)])
def test_prompts_around_the_context(tmp_path: Path, tokens: int, status: int) -> None:
    """vllm-project/vllm#16445, #1185, CarperAI/trlx#130: one as long as the context runs, a longer one is refused."""
    script = [65] if status == 0 else []
    folder = str(write_scripted(write_t1(tmp_path), script, prompt_tokens=tokens, context=8))
    result = run_genx("run", "x" * tokens, "-n", "1", "-m", folder)
    assert result.status == status
    if status == 0:
        assert (result.text, result.stderr) == ("A", "")
    else:
        assert result.stdout == b""
        assert result.stderr == (
            "genx: error: the prompt has 9 tokens and the model's context 8; shorten the prompt, "
            "or give --truncate left to read its last 8 tokens only, or right for its first\n"
        )


def test_truncate_left_reads_the_last_tokens(tmp_path: Path) -> None:
    folder = str(write_scripted(write_t1(tmp_path), [65], prompt_tokens=8, context=8))
    result = run_genx("run", "abcdefghijk", "-n", "1", "--truncate", "left", "--echo", "-m", folder)
    assert (result.status, result.text) == (0, "defghijkA")
    assert result.stderr == (
        "genx: warning: the prompt is longer than the model's context of 8 tokens; its first 3 are left out\n"
    )


def test_truncate_right_reads_the_first_tokens(tmp_path: Path) -> None:
    folder = str(write_scripted(write_t1(tmp_path), [65], prompt_tokens=8, context=8))
    result = run_genx("run", "abcdefghijk", "-n", "1", "--truncate", "right", "--echo", "-m", folder)
    assert (result.status, result.text) == (0, "abcdefghA")
    assert result.stderr == (
        "genx: warning: the prompt is longer than the model's context of 8 tokens; its last 3 are left out\n"
    )


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture
def chat_folder(tmp_path: Path) -> str:
    tokenizer = write_t1(tmp_path / "chat", ["</s>", "<s>"], eos_token="</s>", chat_template=TEMPLATE)
    return str(write_scripted(tokenizer, []))


def _read_by(chat_folder: str, *arguments: str) -> tuple[str, int]:
    """The prompt as text with its special tokens, and the number of its tokens."""
    shown = run_genx("run", "-n", "0", "--echo", "--special", *arguments, "-m", chat_folder)
    counted = json.loads(run_genx("run", "-n", "0", "--json", *arguments, "-m", chat_folder).text)
    return shown.text, counted["prompt_tokens"]


def test_the_chat_template_is_used_unless_raw(chat_folder: str) -> None:
    assert _read_by(chat_folder, "hi") == ("[user]hi</s>>", 10)
    assert _read_by(chat_folder, "hi", "-s", "be kind") == ("[system]be kind</s>[user]hi</s>>", 26)
    assert _read_by(chat_folder, "hi", "--raw") == ("hi", 2)


def test_control_text_in_a_prompt(chat_folder: str) -> None:
    """google-deepmind/gemma#768: plain text in a chat, parsed with --raw, and either on demand."""
    assert _read_by(chat_folder, "a</s>b") == ("[user]a</s>b</s>>", 14)
    assert _read_by(chat_folder, "a</s>b", "--parse-special") == ("[user]a</s>b</s>>", 11)
    assert _read_by(chat_folder, "a</s>b", "--raw") == ("a</s>b", 3)
    assert _read_by(chat_folder, "a</s>b", "--raw", "--no-parse-special") == ("a</s>b", 6)


BOS = "<s>"


def test_bos_is_there_once(tmp_path: Path) -> None:
    """EleutherAI/lm-evaluation-harness PR #1465, huggingface/transformers#37686, abetlen/llama-cpp-python PR #1439.

    The tokenizer adds one to plain text, the template writes one itself, and so may the user.
    """
    tokenizer = write_t1(
        tmp_path, ["</s>", BOS], prompt_bos=BOS, bos_token=BOS, chat_template=f"{BOS}{{{{ messages[0].content }}}}"
    )
    folder = str(write_scripted(tokenizer, []))
    assert _read_by(folder, "hi", "--raw") == ("<s>hi", 3)
    assert _read_by(folder, "hi") == ("<s>hi", 3)
    assert _read_by(folder, "", "--raw") == ("<s>", 1)
    typed = run_genx("run", "<s>hi", "--raw", "-n", "0", "--json", "-m", folder)
    assert json.loads(typed.text)["prompt_tokens"] == 3


def test_a_system_message_needs_a_template(folder: str, chat_folder: str) -> None:
    for arguments, why in (([folder], "this checkpoint has none"), ([chat_folder, "--raw"], "--raw switches it off")):
        result = run_genx("run", "x", "--system", "s", "-m", *arguments)
        assert result.status == 2
        assert result.stderr == (
            f"genx: error: --system needs a chat template, and {why}; put the text into the prompt, or drop --system\n"
        )


def test_the_attention_mask_hides_tokens(tmp_path: Path) -> None:
    """Positions count the tokens that are seen, so that two hidden ones move the script by two."""
    folder = str(write_scripted(tmp_path, [65, 66, 67], prompt_tokens=1))
    hidden = run_genx("run", "--ids", "1,2,3", "--attention-mask", "0,0,1", "-n", "3", "-m", folder)
    assert hidden.text == "65,66,67"
    assert run_genx("run", "--ids", "1,2,3", "--attention-mask", "1,1,1", "-n", "1", "-m", folder).text == "67"


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("1,1", "--attention-mask has 2 entries; allowed: one for each of the prompt's 3 tokens"),
        ("1,2,1", "--attention-mask holds 2; allowed: 1 for a token, 0 for padding"),
        ("1,1,0", "--attention-mask hides the last token of the prompt; allowed: padding on the left only"),
        ("a", "--attention-mask is 'a'; allowed: whole numbers with commas between them"),
    ],
)
def test_masks_that_fit_no_prompt(tmp_path: Path, mask: str, said: str) -> None:
    folder = str(write_scripted(tmp_path, []))
    result = run_genx("run", "--ids", "1,2,3", "--attention-mask", mask, "-m", folder)
    assert (result.status, result.stderr) == (2, f"genx: error: {said}\n")


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    folder = str(write_scripted(tmp_path, []))
    for given in ("300", "-1"):
        result = run_genx("run", "--ids", given, "-m", folder)
        assert result.status == 2
        assert result.stderr == (
            f"genx: error: the prompt holds the token id {given}; allowed: 0 to 299, the model's vocabulary\n"
        )
