"""Tokenizers out of GGUF metadata, without a witness: words, merges, roles, stop ids and templates."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from genx.checkpoint import GenerationDefaults, read_config_json, read_generation_defaults
from genx.gguf.tokenizer import tokenizer_json
from genx.tokenization import Tokenizer, load_tokenizer
from tests.fixtures.gguf_files import byte_level_tokenizer, sentencepiece_tokenizer, write_gguf

CONTROL, USER = int(gguf.TokenType.CONTROL), int(gguf.TokenType.USER_DEFINED)


def write(path: Path, metadata: Any, **keys: Any) -> Path:
    """A file of a Llama of which the embedding alone is there; enough for all but weights."""
    sizes = {"block_count": 1, "embedding_length": 4, "context_length": 8, "attention.head_count": 1}
    metadata = {**{f"llama.{key}": value for key, value in sizes.items()}, **metadata, **keys}
    rows = len(metadata["tokenizer.ggml.tokens"])
    return write_gguf(path, "llama", metadata, {"token_embd.weight": (np.zeros((rows, 4), np.float32), "F32")})


def load(path: Path, metadata: Any, **keys: Any) -> Tokenizer:
    return load_tokenizer(write(path / "tiny.gguf", metadata, **keys))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("gpt-2 phi-2 olmo", "It|'s| 12345| | ok|;|\n\n| Ünï|_|x"),
        ("smollm starcoder command-r refact", "It|'s| |1|2|3|4|5| | ok|;|\n\n| Ünï|_|x"),
        ("llama-bpe llama3 dbrx smaug-bpe", "It|'s| |123|45| | ok|;\n\n| Ünï|_x"),
        ("qwen2 deepseek-r1-qwen tekken", "It|'s| |1|2|3|4|5| | ok|;\n\n| Ünï|_x"),
        ("gpt-4o llama4", "It's| |123|45| | ok|;\n\n| Ünï|_x"),
        ("falcon default", "It|'|s| |123|45| | ok|;|\n\n| Ünï|_|x"),
        ("deepseek-llm", "It|'|s| |12345| | ok|;|\n|\n| Ü|n|ï|_|x"),
        ("deepseek-coder", "It|'|s| |1|2|3|4|5| | ok|;|\n|\n| Ünï|_|x"),
        ("deepseek-v3", "It|'s| |123|45| | ok|;\n\n| Ünï|_x"),
    ],
)
def test_words(names: str, words: str) -> None:
    text = words.replace("|", "")
    for name in names.split():
        backend = Backend.from_str(json.dumps(tokenizer_json(byte_level_tokenizer(pre=name))))
        cut = backend.pre_tokenizer.pre_tokenize_str(text)
        assert "|".join(text[start:stop] for _, (start, stop) in cut) == words


def test_normal_forms_are_those_of_the_models() -> None:
    forms = {
        name: tokenizer_json(byte_level_tokenizer(pre=name))["normalizer"] for name in ("gpt-2", "qwen2", "command-r")
    }
    assert forms == {"gpt-2": None, "qwen2": {"type": "NFC"}, "command-r": {"type": "NFC"}}


def test_a_byte_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level_tokenizer(["h e", "Ġ he"], pre="gpt-2"))
    assert tokenizer.encode("he he\n<|end|>") == [256, 257, 10, 258]
    assert tokenizer.encode("<|end|>", parse_special=False) == list(b"<|end|>")
    assert tokenizer.decode([256, 257, 0xC3, 0xA9, 258]) == "he heé"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.has_chat_template) == (None, (258,), False)


def test_a_word_that_is_a_token_goes_before_its_merges(tmp_path: Path) -> None:
    merges = ["a b", "c d", "b c", "a bc"]  # by merges abc is ab, c
    assert load(tmp_path, byte_level_tokenizer(merges, pre="gpt-2")).encode("abc") == [256, ord("c")]
    assert load(tmp_path, byte_level_tokenizer(merges, pre="llama-bpe")).encode("abc") == [259]


def test_a_sentencepiece_tokenizer(tmp_path: Path) -> None:
    """The union with the best score first: `▁he` before `ll`, though both would do."""
    metadata = sentencepiece_tokenizer(["▁h", "▁he", "ll", "el", "ell"])
    tokenizer = load(tmp_path, metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[token_id] for token_id in tokenizer.encode("hell")] == ["<s>", "▁he", "ll"]
    assert [tokens[token_id] for token_id in tokenizer.encode("hé", add_special_tokens=False)] == [
        "▁h", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("hell é")) == "hell é"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))


def test_a_sentencepiece_tokenizer_without_a_first_space(tmp_path: Path) -> None:
    metadata = sentencepiece_tokenizer(["▁h", "he"], add_space_prefix=False, add_bos_token=False)
    tokenizer = load(tmp_path, metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[token_id] for token_id in tokenizer.encode("he he")] == ["he", "▁h", "e"]
    assert tokenizer.decode(tokenizer.encode(" he")) == " he"


def test_tokens_of_the_user_are_found_first_and_are_text(tmp_path: Path) -> None:
    metadata = dict(byte_level_tokenizer(pre="gpt-2"))
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "  x"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], USER]
    tokenizer = load(tmp_path, metadata)
    assert tokenizer.encode("a  xb", parse_special=False) == [ord("a"), 258, ord("b")]
    assert tokenizer.decode([258]) == "  x"


def test_bos_and_eos_around_a_text(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path, byte_level_tokenizer(pre="gpt-2", bos_token_id=0, add_bos_token=True, add_eos_token=True)
    )
    assert tokenizer.encode("a") == [0, ord("a"), 257]
    assert tokenizer.encode("a", add_special_tokens=False) == [ord("a")]


@pytest.mark.parametrize(
    ("texts", "keys", "expected"),
    [
        (["<|eot_id|>"], {"eos_token_id": 0}, (0, 258)),
        (["<|eot_id|>", "<|eom_id|>"], {"eos_token_id": 0, "eot_token_id": 5, "eom_token_id": 6}, (0, 5, 6, 258, 259)),
        (["<|return|>", "<|call|>"], {"eos_token_id": 258}, (258, 259)),  # <|end|> ends a message there, no answer
        (["</tool>"], {"eos_token_id": 1000}, (257,)),
    ],
)
def test_stop_ids(texts: list[str], keys: dict[str, int], expected: tuple[int, ...], tmp_path: Path) -> None:
    metadata = dict(byte_level_tokenizer(pre="gpt-2", **keys))
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *texts]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *(CONTROL for _ in texts)]
    found = read_generation_defaults(write(tmp_path / "tiny.gguf", metadata)).eos_token_ids
    assert sorted(found) == sorted({*expected, *(() if "<|return|>" in texts else (257,))})


def test_what_the_file_says_about_generating(tmp_path: Path) -> None:
    file = write(
        tmp_path / "tiny.gguf",
        byte_level_tokenizer(pre="gpt-2", bos_token_id=3, padding_token_id=4),
        **{"general.sampling.temp": 0.5, "general.sampling.top_k": 40},
    )
    sampling = {"do_sample": True, "temperature": 0.5, "top_k": 40}
    assert read_generation_defaults(file) == GenerationDefaults((257,), 4, 3, sampling)
    config = read_config_json(file)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (3, 257, 4)


def test_templates_by_name(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    one = {"tokenizer.chat_template": "<{{ messages[0]['content'] }}>"}
    assert load(tmp_path, byte_level_tokenizer(pre="gpt-2"), **one).encode_chat(messages) == list(b"<hi>")
    two = {**one, "tokenizer.chat_template.rag": "rag", "tokenizer.chat_templates": ["rag"]}
    assert load(tmp_path, byte_level_tokenizer(pre="gpt-2"), **two).encode_chat(messages) == list(b"<hi>")
