"""Text to ids: control tokens read or not, and BOS exactly once."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genx.errors import GenxWarning, TokenizerError
from genx.tokenization import Tokenizer, load_tokenizer
from tests.fixtures.tokenizers import write_t1, write_t2

EOT = "<|eot|>"
PLAIN_EOT = list(EOT.encode())


def test_control_token_text_is_parsed_or_plain(tmp_path: Path) -> None:
    """google-deepmind/gemma#768: the flag decides."""
    tokenizer = load_tokenizer(write_t1(tmp_path, (EOT,)))
    assert tokenizer.encode(f"a{EOT}b") == [97, 256, 98]
    assert tokenizer.encode(f"a{EOT}b", parse_special=False) == [97, *PLAIN_EOT, 98]
    assert tokenizer.encode(f"a{EOT}b") == [97, 256, 98]


def test_control_tokens_that_the_file_does_not_call_special(tmp_path: Path) -> None:
    """Such as ChatML's in many fine-tuned models: the configuration or the template tells."""
    added = [
        {"content": text, "special": False} for text in ("<end>", "<turn>", "<listed>", "<table>", "\n\n", "messages")
    ]
    tokenizer = load_tokenizer(
        write_t1(
            tmp_path,
            added,
            eos_token="<end>",
            additional_special_tokens=["<listed>"],
            chat_template="<turn>\n\n{{ messages[0].content }}",
        )
    )
    for text in ("<end>", "<turn>", "<listed>"):
        assert tokenizer.encode(text, parse_special=False) == list(text.encode())
    # Words, spaces and HTML are ordinary vocabulary.
    assert tokenizer.encode("<table>\n\nmessages", parse_special=False) == [259, 260, 261]
    assert tokenizer.encode("<end><turn><listed>") == [256, 257, 258]


UNIGRAM = {
    "type": "Unigram",
    "unk_id": 0,
    "vocab": [["<unk>", 0.0], ["<s>", 0.0], *([sign, -1.0] for sign in "<s>ab")],
    "byte_fallback": False,
}
WORD_LEVEL = {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "<s>": 1, "a": 2, "b": 3}}
WHOLE_WORDS = {
    "type": "BPE",
    "unk_token": "<unk>",
    "ignore_merges": True,
    "vocab": {"<unk>": 0, "<s>": 1, "<": 2, "s": 3, ">": 4, "a": 5, "b": 6, "<s": 7},
    "merges": [["<", "s"], ["<s", ">"]],
}


@pytest.mark.parametrize(
    ("model", "expected"),
    [(UNIGRAM, [5, 2, 3, 4, 6]), (WORD_LEVEL, [0]), (WHOLE_WORDS, [5, 7, 4, 6])],
    ids=["unigram", "word level", "merges that lead to a control token"],
)
def test_the_model_does_not_find_the_control_token_either(
    tmp_path: Path, model: dict[str, Any], expected: list[int]
) -> None:
    """Where the vocabulary itself holds the text of a control token, the model must not build it from pieces."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": index, "content": text, **special} for index, text in enumerate(("<unk>", "<s>"))]
    content = {"version": "1.0", "model": model, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a<s>b")[1:-1] == [1]
    assert tokenizer.encode("a<s>b", parse_special=False) == expected


@given(text=st.lists(st.sampled_from([EOT, "<s>", "a", " ", "讲", "<", "|", "Hello", "\n"]), max_size=12).map("".join))
@settings(max_examples=200, deadline=None)
def test_plain_text_is_what_a_tokenizer_without_the_control_tokens_makes_of_it(
    folders: dict[str, Tokenizer], text: str
) -> None:
    """Also the other way round: without such text the flag changes nothing."""
    assert folders["t1"].encode(text, parse_special=False) == list(text.encode())
    assert "<s>" in text or folders["t2"].encode(text, parse_special=False) == folders["bare t2"].encode(text)
    if EOT not in text and "<s>" not in text:
        assert folders["t2"].encode(text) == folders["t2"].encode(text, parse_special=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("encode")
    return {
        "t1": load_tokenizer(write_t1(folder / "t1", (EOT, "<s>"))),
        "t2": load_tokenizer(write_t2(folder / "t2", (EOT,))),
        "bare t2": load_tokenizer(write_t2(folder / "bare", ())),
    }


def test_the_post_processor_adds_bos(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_t2(tmp_path, prompt_bos="<s>", bos_token="<s>"))
    assert tokenizer.encode("Hello")[0] == 1
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("Hello") == [1, *tokenizer.encode("Hello", add_special_tokens=False)]


def test_bos_of_a_post_processor_is_known_without_a_configuration(tmp_path: Path) -> None:
    assert load_tokenizer(write_t2(tmp_path, prompt_bos="<s>")).bos_token_id == 1


@pytest.mark.parametrize("typed", ["<s>", "<s><s>"])
def test_a_typed_bos_is_not_doubled(tmp_path: Path, typed: str) -> None:
    """abetlen/llama-cpp-python PR #1439: one BOS, and a warning."""
    tokenizer = load_tokenizer(write_t1(tmp_path, ("<s>",), prompt_bos="<s>", bos_token="<s>"))
    with pytest.warns(GenxWarning, match=r"begins with <s>, which the tokenizer adds by itself; it is used once"):
        assert tokenizer.encode(typed + "ab") == [256, 97, 98]
    assert tokenizer.encode(typed + "ab", parse_special=False) == [256, *typed.encode(), 97, 98]


def test_a_typed_bos_that_nobody_adds_stays(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_t1(tmp_path, ("<s>",), bos_token="<s>"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokenizer.encode("<s>ab") == [256, 97, 98]
        assert tokenizer.encode("ab") == [97, 98]


@pytest.mark.parametrize("settings", [{"add_bos_token": True}, {"tokenizer_class": "GemmaTokenizer"}])
@pytest.mark.parametrize("prompt_bos", [None, "<bos>"])
def test_gemma_begins_with_one_bos(tmp_path: Path, settings: dict[str, Any], prompt_bos: str | None) -> None:
    """EleutherAI/lm-evaluation-harness PR #1465: whether or not the post-processor adds it."""
    tokenizer = load_tokenizer(write_t1(tmp_path, ("<bos>",), prompt_bos=prompt_bos, bos_token="<bos>", **settings))
    assert tokenizer.encode("a") == [256, 97]
    assert tokenizer.encode("a", add_special_tokens=False) == [97]
    with pytest.warns(GenxWarning, match="begins with <bos>"):
        assert tokenizer.encode("<bos>a") == [256, 97]


def test_gemma_can_be_told_not_to(tmp_path: Path) -> None:
    folder = write_t1(tmp_path, ("<bos>",), bos_token="<bos>", tokenizer_class="GemmaTokenizer", add_bos_token=False)
    assert load_tokenizer(folder).encode("a") == [97]


def test_a_text_that_the_vocabulary_cannot_write_is_refused(tmp_path: Path) -> None:
    content = {"version": "1.0", "added_tokens": [], "model": {"type": "Unigram", "vocab": [["a", 0.0]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(TokenizerError, match="the tokenizer cannot represent the text: "):
        load_tokenizer(tmp_path).encode("b")


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    """huggingface/transformers PR #43459."""
    tokenizer = load_tokenizer(write_t1(tmp_path, chat_template="{{ messages[0].content }}"))
    with pytest.raises(TokenizerError, match=r"a lone surrogate, U\+D800, at character 2; allowed: valid Unicode"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(TokenizerError, match="a lone surrogate"):
        tokenizer.encode_chat([{"role": "user", "content": "ab\ud800"}])
