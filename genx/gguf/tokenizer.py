"""A GGUF file's vocabulary as the contents of tokenizer.json and tokenizer_config.json."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from genx.errors import TokenizerError
from genx.gguf.pre_tokenizers import PreTokenizer, find_pre_tokenizer
from genx.gguf.vocabulary import TokenKind, Vocabulary, read_vocabulary

_SPACE = "▁"  # what SentencePiece writes for a space
# Pieces are cut in two at every place: far above the 30 million of published vocabularies, it would take minutes.
_MOST_WORK = 1 << 28
_TEMPLATE = "tokenizer.chat_template"


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What tokenizer.json would hold.

    Args:
        metadata: with `genx.gguf.vocabulary.TOKENIZER_ARRAYS` read whole.

    Raises:
        TokenizerError: the file has no tokenizer that genx can make, or a damaged one.
    """
    vocabulary = read_vocabulary(metadata)
    parts = _sentencepiece(vocabulary) if vocabulary.is_sentencepiece else _byte_level(vocabulary)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token_id, **token} for token_id, token in _added_tokens(vocabulary).items()],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _post_processor(vocabulary),
        **parts,
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What tokenizer_config.json would hold; see `tokenizer_json`."""
    vocabulary = read_vocabulary(metadata)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(token_id): token for token_id, token in _added_tokens(vocabulary).items()},
        "add_bos_token": _begins_with_bos(vocabulary),
        "add_eos_token": vocabulary.flag("add_eos_token", False),
        "clean_up_tokenization_spaces": False,
        **{role: vocabulary.texts[token_id] for role, token_id in vocabulary.roles.items()},
    }
    templates = {
        key.removeprefix(_TEMPLATE).removeprefix(".") or "default": source
        for key, source in metadata.items()
        if (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")) and isinstance(source, str)
    }
    if set(templates) == {"default"}:
        config["chat_template"] = templates["default"]
    elif templates:
        config["chat_template"] = [{"name": name, "template": source} for name, source in templates.items()]
    return config


def _added_tokens(vocabulary: Vocabulary) -> dict[int, dict[str, Any]]:
    """Tokens that are found in a text before it is cut into words, by id."""
    exact = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    kinds = (TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED)
    return {
        token_id: {"content": text, **exact, "special": kind != TokenKind.USER_DEFINED}
        for token_id, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
        if kind in kinds
    }


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    name = vocabulary.metadata.get("tokenizer.ggml.pre", "default")
    return find_pre_tokenizer(name if isinstance(name, str) else "")


def _begins_with_bos(vocabulary: Vocabulary) -> bool:
    default = vocabulary.is_sentencepiece or _pre_tokenizer(vocabulary).begins_with_bos
    return "bos_token" in vocabulary.roles and vocabulary.flag("add_bos_token", default)


def _post_processor(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """What puts BOS and EOS around a text; transformers looks for them here and not in the configuration."""
    before = [vocabulary.roles["bos_token"]] if _begins_with_bos(vocabulary) else []
    ends = vocabulary.flag("add_eos_token", False) and "eos_token" in vocabulary.roles
    after = [vocabulary.roles["eos_token"]] if ends else []
    if not before and not after:
        return None
    texts = {token_id: vocabulary.texts[token_id] for token_id in (*before, *after)}

    def template(*sequences: str) -> list[dict[str, Any]]:
        return [
            piece
            for number, sequence in enumerate(sequences)
            for piece in (
                *({"SpecialToken": {"id": texts[token_id], "type_id": number}} for token_id in before),
                {"Sequence": {"id": sequence, "type_id": number}},
                *({"SpecialToken": {"id": texts[token_id], "type_id": number}} for token_id in after),
            )
        ]

    return {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]} for token_id, text in texts.items()},
    }


def _byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    pre_tokenizer = _pre_tokenizer(vocabulary)
    add_prefix_space = vocabulary.flag("add_space_prefix", False)
    merges = []
    for merge in vocabulary.merges():
        end = merge.find(" ", 1)  # the first token may itself be a space's sign, never empty
        if end < 0:
            raise TokenizerError("tokenizer.ggml.merges has an entry that is no pair; download the file again")
        merges.append([merge[:end], merge[end + 1 :]])
    return {
        "normalizer": None if pre_tokenizer.normal_form is None else {"type": pre_tokenizer.normal_form},
        "pre_tokenizer": pre_tokenizer.steps(add_prefix_space=add_prefix_space),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": _bpe(vocabulary, merges, ignore_merges=pre_tokenizer.whole_words),
    }


def _sentencepiece(vocabulary: Vocabulary) -> dict[str, Any]:
    to_space = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    from_space = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    begins_with_space = vocabulary.flag("add_space_prefix", True)
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if begins_with_space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins_with_space else []
    unknown = vocabulary.roles.get("unk_token")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, to_space]},
        "decoder": {
            "type": "Sequence",
            "decoders": [from_space, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": _bpe(
            vocabulary,
            _merges_by_score(vocabulary),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else vocabulary.texts[unknown],
        ),
    }


def _merges_by_score(vocabulary: Vocabulary) -> list[list[str]]:
    """SentencePiece merges the two neighbours whose union has the highest score; BPE wants that as a list of pairs."""
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    if sum(len(text) ** 2 for text in ids) > _MOST_WORK:
        raise TokenizerError("the tokens of this SentencePiece vocabulary are too long; download the file again")
    scores = vocabulary.scores()
    words = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)
    unions = [token_id for token_id, kind in enumerate(vocabulary.kinds) if kind in words]
    unions.sort(key=lambda token_id: -scores[token_id] if math.isfinite(scores[token_id]) else math.inf)
    return [pair for token_id in unions for pair in _pairs(vocabulary.texts[token_id], ids)]


def _pairs(text: str, ids: Mapping[str, int]) -> Sequence[list[str]]:
    pairs = [[text[:end], text[end:]] for end in range(1, len(text)) if text[:end] in ids and text[end:] in ids]
    return pairs if len(pairs) < 2 else sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def _bpe(vocabulary: Vocabulary, merges: Sequence[list[str]], **settings: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": {text: token_id for token_id, text in enumerate(vocabulary.texts)},
        "merges": merges,
    }
