"""Incremental text: the pieces, joined, are one decode of all ids, and each comes as soon as it is final."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from genx.errors import TokenizerError
from genx.tokenization import Tokenizer, load_tokenizer
from genx.tokenization.decoder_stages import Stage
from tests.fixtures.tokenizers import T2_FIRST_BYTE, write_t1, write_t2

EOT = "<|eot|>"
ADDED = (EOT, {"content": "<plain>", "special": False}, {"content": "▁ é讲", "special": False})

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}


def strip(start: int, stop: int, content: str = " ") -> dict[str, Any]:
    return {"type": "Strip", "content": content, "start": start, "stop": stop}


def sequence(*decoders: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(decoders)}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


# Those of published decoder-only models first, then whatever else the library can do.
DECODERS = {
    "llama": sequence(REPLACE, FALLBACK, FUSE, strip(1, 0)),
    "gemma": sequence(REPLACE, FALLBACK, FUSE),
    "openai-gpt": {"type": "BPEDecoder", "suffix": "</w>"},
    "metaspace": METASPACE,
    "metaspace, first": {**METASPACE, "prepend_scheme": "first"},
    "metaspace, never": {**METASPACE, "prepend_scheme": "never"},
    "byte fallback, metaspace": sequence(FALLBACK, METASPACE),
    "word pieces": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "word pieces as they are": {"type": "WordPiece", "prefix": "##", "cleanup": False},
    "ctc": CTC,
    "strip two signs": sequence(REPLACE, FALLBACK, FUSE, strip(2, 0)),
    "strip each token": sequence(REPLACE, strip(2, 0)),
    "strip before fusing": sequence(REPLACE, FALLBACK, strip(1, 0), FUSE),
    "replace across tokens": sequence(FALLBACK, FUSE, replace("aab", "<"), replace("▁", " ")),
    "replace by a pattern": sequence(replace("▁+", " ", "Regex"), FALLBACK, FUSE),
    "replace in the whole text by a pattern": sequence(FALLBACK, FUSE, replace("▁+", " ", "Regex")),
    "bpe decoder, then fuse": sequence({"type": "BPEDecoder", "suffix": "</w>"}, FUSE, strip(1, 0, "a")),
    "bpe decoder, then tokens": sequence({"type": "BPEDecoder", "suffix": "</w>"}, strip(1, 0)),
    "byte level, then strip": sequence(BYTE_LEVEL, strip(1, 0)),
    "bytes after fusing": sequence(FUSE, FALLBACK),
    "nothing": sequence(),
}
WORDS = (
    "▁Hello",
    "▁world",
    "aab",
    "▁▁▁",
    "foxes</w>",
    "</w>mid</w>",
    "##ly",
    ".",
    "n't",
    "|",
    "<pad>",
    "<0x+A>",
    "</w>",
)


def write_with_decoder(folder: Path, decoder: dict[str, Any] | None) -> Path:
    """T2 with another decoder and words that mean something to it."""
    write_t2(folder, ADDED, words=WORDS)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "decoder": decoder}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def t1(folder: Path) -> Tokenizer:
    return load_tokenizer(write_t1(folder / "t1", ADDED, pieces=("stop!", "讲 the")))


@pytest.fixture(scope="module")
def t2(folder: Path) -> Tokenizer:
    return load_tokenizer(write_t2(folder / "t2", ADDED))


def stream(tokenizer: Tokenizer, ids: Sequence[int], skip: bool = True) -> list[str]:
    """The pieces, one for each id and one for the end."""
    decoder = tokenizer.incremental(skip_special_tokens=skip)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


def assert_exact(tokenizer: Tokenizer, backend: Backend, ids: Sequence[int]) -> None:
    for skip in (True, False):
        expected = backend.decode(list(ids), skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
        assert "".join(stream(tokenizer, ids, skip)) == expected


def backend_of(folder: Path) -> Backend:
    return Backend.from_file(str(folder / "tokenizer.json"))


# Every id of the small tokenizers, some beyond, and the bytes that matter to UTF-8 often.
INTERESTING = [0x20, 0x41, 0x61, 0x80, 0xA0, 0xBD, 0xBF, 0xC2, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0x9F, 0x98, 0xF4, 0xFF]
CHARACTERS = st.sampled_from(["讲", "😀", "\ufffd", "é", "a", " ", "\u200d"])
T1_IDS = st.lists(st.one_of(st.integers(0, 270), st.sampled_from(INTERESTING)), max_size=24)
T2_IDS = st.lists(st.one_of(st.integers(0, 360), st.sampled_from([3 + byte for byte in INTERESTING])), max_size=24)


@given(ids=T1_IDS)
@settings(max_examples=400, deadline=None)
def test_byte_level_ids_of_any_kind(t1: Tokenizer, folder: Path, ids: list[int]) -> None:
    """abetlen/llama-cpp-python#116, huggingface/transformers#28776, tokenizers X5: any ids, any cut."""
    assert_exact(t1, backend_of(folder / "t1"), ids)


@given(ids=T2_IDS)
@settings(max_examples=400, deadline=None)
def test_sentencepiece_ids_of_any_kind(t2: Tokenizer, folder: Path, ids: list[int]) -> None:
    """huggingface/transformers#28776: chunk borders change nothing, whatever the ids."""
    assert_exact(t2, backend_of(folder / "t2"), ids)


@pytest.mark.parametrize("name", [*DECODERS, None])
def test_every_decoder_of_the_library(tmp_path: Path, name: str | None) -> None:
    folder = write_with_decoder(tmp_path, DECODERS[name] if name else None)
    tokenizer, backend = load_tokenizer(folder), backend_of(folder)
    size = backend.get_vocab_size()

    @given(
        ids=st.lists(
            st.one_of(
                st.integers(0, size + 2),
                st.integers(T2_FIRST_BYTE + 256, size),
                st.sampled_from([T2_FIRST_BYTE + byte for byte in INTERESTING]),
            ),
            max_size=16,
        )
    )
    @settings(max_examples=100, deadline=None)
    def exact(ids: list[int]) -> None:
        assert_exact(tokenizer, backend, ids)

    exact()


def test_signs_that_are_stripped_from_the_end_are_held_back(tmp_path: Path) -> None:
    """The library panics where fewer signs are there than it would strip, so the text begins with a word."""
    folder = write_with_decoder(tmp_path, sequence(REPLACE, FALLBACK, FUSE, strip(1, 3)))
    tokenizer, backend = load_tokenizer(folder), backend_of(folder)
    hello, three_spaces = (backend.token_to_id(token) for token in ("▁Hello", "▁▁▁"))
    assert stream(tokenizer, [hello, three_spaces, three_spaces, hello]) == ["Hello", "", "   ", "    Hello", ""]

    @given(ids=st.lists(st.sampled_from([hello, three_spaces, T2_FIRST_BYTE + 0x20, T2_FIRST_BYTE + 0xFF])))
    def exact(ids: list[int]) -> None:
        assert_exact(tokenizer, backend, [hello, *ids])

    exact()


def test_a_panic_in_the_library_is_an_error_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(write_with_decoder(tmp_path, sequence(FUSE, strip(0, 1))))
    with pytest.raises(TokenizerError, match="cannot decode"):
        tokenizer.decode([])
    assert tokenizer.incremental().flush() == ""


@given(text=st.text(st.one_of(CHARACTERS, st.characters(codec="utf-8")), max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back(t1: Tokenizer, t2: Tokenizer, text: str) -> None:
    assert "".join(stream(t1, t1.encode(text, parse_special=False))) == text
    assert "".join(stream(t2, t2.encode(text, parse_special=False))) == text.replace("▁", " ")


def test_an_emoji_in_four_tokens_comes_whole(t1: Tokenizer) -> None:
    """abetlen/llama-cpp-python#116, ml-explore/mlx-examples PR #702: nothing, then the character; no sign of a half."""
    assert stream(t1, [ord("a"), *"😀".encode(), ord("b")]) == ["a", "", "", "", "😀", "b", ""]


def test_chinese_by_byte_fallback_loses_nothing(t2: Tokenizer) -> None:
    """huggingface/text-generation-inference#333: nine byte tokens, then a word."""
    ids = [T2_FIRST_BYTE + byte for byte in "讲故事".encode()] + t2.encode("world")
    assert "".join(stream(t2, ids)) == "讲故事 world"


def test_words_keep_the_space_between(t2: Tokenizer) -> None:
    """Lightning-AI/litgpt PR #2326, huggingface/transformers#28776."""
    ids = t2.encode("Hello world")
    assert len(ids) == 2
    assert stream(t2, ids) == ["Hello", " world", ""]


def test_a_byte_level_vocabulary_with_a_sentencepiece_decoder(tmp_path: Path) -> None:
    """ml-explore/mlx-lm#1041: the decoder is repaired at loading, so no byte sign is printed, streamed or at once."""
    tokenizer = load_tokenizer(write_t1(tmp_path, decoder=DECODERS["llama"]))
    ids = tokenizer.encode("Hello world 讲")
    assert tokenizer.decode(ids) == "Hello world 讲"
    assert "".join(stream(tokenizer, ids)) == "Hello world 讲"


def test_a_byte_level_vocabulary_without_a_decoder(tmp_path: Path) -> None:
    path = write_t1(tmp_path) / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "decoder": None}), encoding="utf-8")
    assert load_tokenizer(tmp_path).decode([0x61, 0x20, 0x62]) == "a b"


def test_the_prompt_is_no_part_of_the_text(t1: Tokenizer) -> None:
    """vllm-project/vllm#48853: the prompt ended in two of three bytes; the third alone is one malformed byte."""
    _prompt, generated = "讲".encode()[:2], "讲".encode()[2:]
    assert "".join(stream(t1, list(generated))) == "\ufffd"


def test_chinese_does_not_wait_for_a_space(tmp_path: Path) -> None:
    """huggingface/transformers PR #22664: each character of the vocabulary comes with its token."""
    tokenizer = load_tokenizer(write_t2(tmp_path, words=("▁", "讲", "故", "事")))
    pieces = stream(tokenizer, tokenizer.encode("讲故事" * 7)[1:])
    assert pieces == [*("讲故事" * 7), ""]


def test_chinese_bytes_do_not_wait_for_a_space(t1: Tokenizer) -> None:
    """huggingface/transformers PR #22664, byte level: each character comes with its last byte."""
    pieces = stream(t1, list(("讲" * 20).encode()))
    assert pieces == [*(["", "", "讲"] * 20), ""]


def test_a_run_of_byte_tokens_is_final_when_it_ends(t2: Tokenizer) -> None:
    """One bad byte makes the library decode the run to replacement characters, the good characters before it too."""
    good = [T2_FIRST_BYTE + byte for byte in "讲".encode()]
    assert stream(t2, [*good, *t2.encode("Hello")]) == ["", "", "", "讲 Hello", ""]
    assert stream(t2, [*good, T2_FIRST_BYTE + 0xFF, *good]) == ["", "", "", "\ufffd" * 4, *("\ufffd" * 3), ""]


def test_letters_do_not_wait_for_a_space(t1: Tokenizer) -> None:
    """huggingface/transformers PR #36708."""
    assert stream(t1, list(b"x" * 40)) == [*("x" * 40), ""]


def test_a_real_replacement_character_is_printed(t1: Tokenizer) -> None:
    """huggingface/tokenizers#1811: it comes with its third byte, not at the end."""
    assert stream(t1, list("x\ufffd".encode())) == ["x", "", "", "\ufffd", ""]


def test_special_tokens_are_left_out_unless_asked_for(t1: Tokenizer) -> None:
    """vllm-project/vllm PR #1044: in the middle, at the end, and within a character."""
    eot = t1.special_token_id(EOT)
    assert eot is not None
    assert "".join(stream(t1, [0x61, eot, 0x62, eot])) == "ab"
    assert "".join(stream(t1, [0x61, eot, 0x62, eot], skip=False)) == f"a{EOT}b{EOT}"
    assert "".join(stream(t1, [0xE8, 0xAE, eot, 0xB2])) == "讲"


def test_no_clean_up(tmp_path: Path) -> None:
    """huggingface/transformers#35175: spaces before signs stay, whatever tokenizer_config.json says."""
    tokenizer = load_tokenizer(write_t1(tmp_path, clean_up_tokenization_spaces=True))
    ids = list(b"a != b 's")
    assert tokenizer.decode(ids) == "".join(stream(tokenizer, ids)) == "a != b 's"


@pytest.mark.parametrize("head", [b"\xe4", b"\xe4\xbd"])
def test_a_space_after_half_a_character(tmp_path: Path, head: bytes) -> None:
    """Blaizzy/mlx-vlm#1771: the half is one replacement character, the word stays."""
    tokenizer = load_tokenizer(write_t1(tmp_path, pieces=(" a",)))
    assert "".join(stream(tokenizer, [*head, 256])) == "\ufffd a"


def test_ids_outside_the_vocabulary_say_nothing(t1: Tokenizer) -> None:
    """pegainfer-project/pegainfer#673, X5: a head may be wider than the tokenizer."""
    ids = [0x61, 280, -1, 2**32, 2**70, 0x62]
    assert t1.decode(ids) == "".join(stream(t1, ids)) == "ab"


def test_flush_ends_the_text(t1: Tokenizer) -> None:
    decoder = t1.incremental()
    assert decoder.push(0xE8) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""
    with pytest.raises(RuntimeError, match="a new text needs a new decoder"):
        decoder.push(0x61)


def test_the_work_for_a_token_does_not_grow_with_the_text(t1: Tokenizer, t2: Tokenizer) -> None:
    """Each id is looked up once, and its token is all that a stage is given: counted, not timed."""
    for tokenizer in (t1, t2):
        decoder = tokenizer.incremental()
        stage = CountingStage((decoder._stages or [])[0])
        token_of = CountingLookup(decoder._token_of)
        decoder._stages = [stage, *(decoder._stages or [])[1:]]
        decoder._token_of = token_of
        ids = tokenizer.encode("Hello world 讲 ") * 200
        text = "".join(decoder.push(token_id) for token_id in ids) + decoder.flush()
        assert text == tokenizer.decode(ids)
        assert token_of.ids == ids
        assert len(stage.lengths) == len(ids)
        assert max(stage.lengths) <= len("▁Hello")


class CountingStage:
    """A stage that notes how long the tokens are that it is given."""

    def __init__(self, stage: Stage) -> None:
        self.lengths: list[int] = []
        self.finish = stage.finish
        self._push = stage.push

    def push(self, token: str) -> list[str]:
        self.lengths.append(len(token))
        return self._push(token)


class CountingLookup:
    """A table of tokens that notes which ids are looked up."""

    def __init__(self, token_of: Callable[[int], str | None]) -> None:
        self.ids: list[int] = []
        self._token_of = token_of

    def __call__(self, token_id: int) -> str | None:
        self.ids.append(token_id)
        return self._token_of(token_id)


@pytest.mark.real_model
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_smollm2(smollm2_folder: Path, data: st.DataObject) -> None:
    tokenizer, backend = _smollm2(smollm2_folder)
    ids = data.draw(st.lists(st.one_of(st.integers(0, 49_200), st.integers(0, 300)), max_size=24))
    assert_exact(tokenizer, backend, ids)
    text = data.draw(st.text(CHARACTERS, max_size=20))
    assert "".join(stream(tokenizer, tokenizer.encode(text, parse_special=False))) == text


_loaded: dict[Path, tuple[Tokenizer, Backend]] = {}


def _smollm2(folder: Path) -> tuple[Tokenizer, Backend]:
    if folder not in _loaded:
        _loaded[folder] = load_tokenizer(folder), backend_of(folder)
    return _loaded[folder]
