"""Reading a folder's tokenizer: what is accepted, and one clear line for what is not."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genx.errors import ExitCode, TokenizerError
from genx.tokenization import load_tokenizer
from tests.fixtures.tokenizers import write_t1, write_t2

EOT = "<|eot|>"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), encoding="utf-8")


def test_named_tokens_as_text_or_as_object(tmp_path: Path) -> None:
    added = (EOT, "<s>", "<pad>")
    plain = load_tokenizer(write_t1(tmp_path / "a", added, bos_token="<s>", eos_token=EOT, pad_token="<pad>"))
    nested = load_tokenizer(
        write_t1(tmp_path / "b", added, bos_token={"content": "<s>"}, eos_token={"content": EOT, "lstrip": False})
    )
    assert (plain.bos_token_id, plain.eos_token_ids, plain.pad_token_id) == (257, (256,), 258)
    assert (nested.bos_token_id, nested.eos_token_ids, nested.pad_token_id) == (257, (256,), None)
    assert plain.vocab_size == 259


def test_named_tokens_from_the_special_tokens_map(tmp_path: Path) -> None:
    write_t1(tmp_path, (EOT, "<s>"), eos_token=None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": EOT}}), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, (256,))


def test_a_named_token_outside_the_vocabulary_is_none(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_t1(tmp_path, eos_token="<unheard>", pad_token=7))
    assert (tokenizer.eos_token_ids, tokenizer.pad_token_id) == ((), None)


def test_special_token_id(tmp_path: Path) -> None:
    """abetlen/llama-cpp-python#1360: a stop text can be known as a special token."""
    tokenizer = load_tokenizer(write_t1(tmp_path, (EOT, {"content": "<x>", "special": False})))
    assert [tokenizer.special_token_id(text) for text in (EOT, EOT + " ", "<x>", "a", "")] == [256, *[None] * 4]


def test_a_folder_with_tokenizer_json_alone(tmp_path: Path) -> None:
    (write_t1(tmp_path) / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.encode("ab") == [97, 98]
    assert not tokenizer.has_chat_template


def test_byte_order_marks(tmp_path: Path) -> None:
    """microsoft/playwright-cli#274: one byte-order mark is no part of a file."""
    write_t1(tmp_path, (EOT,), eos_token=EOT)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    for file in tmp_path.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_token_ids == (256,)
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]) == [97]


def test_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    write_t1(tmp_path)
    edit(
        tmp_path / "tokenizer.json",
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "!",
        },
    )
    assert load_tokenizer(tmp_path).encode("abcd") == [97, 98, 99, 100]


def test_only_sentencepiece(tmp_path: Path) -> None:
    """huggingface/transformers#36291: the message names what is missing and how to get it."""
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(TokenizerError, match=r"has tokenizer\.model .* tokenizer\.json is missing; .*save_pretrained"):
        load_tokenizer(tmp_path)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing in .*; download it"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="is not a folder"):
        load_tokenizer(tmp_path / "nowhere")
    assert TokenizerError.exit_code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", b"", "is not a tokenizer"),
        ("tokenizer.json", b"{", "is not a tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "is not a tokenizer"),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "\\u001b[2J"}}', "is not a tokenizer"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "is not JSON"),
        ("tokenizer_config.json", b"[]", "holds a JSON list; expected an object"),
        ("tokenizer_config.json", b"\xff", "is not UTF-8: byte 0"),
        ("special_tokens_map.json", b"1", "holds a JSON int; expected an object"),
        ("chat_template.jinja", b"a\xff", "is not UTF-8: byte 1"),
        ("chat_template.jinja", b"a" * (1 << 20) + b"a", "more than 1,048,576 bytes"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    write_t1(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=re.escape(problem)) as caught:
        load_tokenizer(tmp_path)
    assert name in str(caught.value)
    assert str(caught.value).isprintable()


def test_loading_imports_no_torch(tmp_path: Path) -> None:
    write_t2(tmp_path, chat_template="{{ messages[0].content }}")
    program = (
        "import sys, genx; t = genx.load_tokenizer(sys.argv[1]);"
        "t.encode_chat([{'role': 'user', 'content': t.decode(t.encode('Hello'))}]);"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
