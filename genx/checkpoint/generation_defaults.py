"""What a checkpoint says about generating: ids that stop, fill and begin, and its sampling values. No torch."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from genx.checkpoint.source import Source, open_source
from genx.sampling_args import is_whole_number

_SAMPLING = ("do_sample", "temperature", "top_k", "top_p")


@dataclass(frozen=True)
class GenerationDefaults:
    """A checkpoint's own wishes.

    `eos_token_ids` are in the order in which they were found. `sampling` holds the values as they stand in
    generation_config.json, unchecked, and nothing applies them by itself.
    """

    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    bos_token_id: int | None
    sampling: Mapping[str, bool | int | float]


def read_generation_defaults(path: str | os.PathLike[str]) -> GenerationDefaults:
    """Read them from generation_config.json, config.json and the tokenizer's files, whichever there are.

    For a GGUF file they are what its metadata says, and control tokens that are known to end an answer.

    The ids that stop are the union of all three. The pad and BOS ids are the first valid ones of generation_config
    and config. An id counts only if it is a whole number inside the embedding: -1, null and what lies beyond
    `vocab_size` mean none.

    Raises:
        CheckpointError: there is no config.json, or a file leads outside the folder or is no JSON object.
        ConfigError: a file is not JSON, or too large.
        TokenizerError: a GGUF file holds a vocabulary that genx does not read.
    """
    source = open_source(path)
    config = source.read_json("config.json", required=True)
    generation = source.read_json("generation_config.json")
    size = config.get("vocab_size")
    vocab_size = size if is_whole_number(size) else None
    stops = [*_as_list(generation.get("eos_token_id")), *_as_list(config.get("eos_token_id"))]
    stops.append(_tokenizer_eos_id(source))
    return GenerationDefaults(
        eos_token_ids=tuple(dict.fromkeys(_inside(stops, vocab_size))),
        pad_token_id=_first_inside("pad_token_id", generation, config, vocab_size),
        bos_token_id=_first_inside("bos_token_id", generation, config, vocab_size),
        sampling={name: generation[name] for name in _SAMPLING if isinstance(generation.get(name), bool | int | float)},
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _inside(ids: Iterable[Any], vocab_size: int | None) -> list[int]:
    return [i for i in ids if is_whole_number(i) and i >= 0 and (vocab_size is None or i < vocab_size)]


def _first_inside(
    key: str, generation: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int | None
) -> int | None:
    return next(iter(_inside([generation.get(key), config.get(key)], vocab_size)), None)


def _tokenizer_eos_id(source: Source) -> int | None:
    """The id of the text that the tokenizer's files call eos_token."""
    settings = source.read_json("tokenizer_config.json")
    eos = settings.get("eos_token") or source.read_json("special_tokens_map.json").get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    if not isinstance(text, str):
        return None
    added = settings.get("added_tokens_decoder")
    for token_id, token in added.items() if isinstance(added, dict) else ():
        if isinstance(token, dict) and token.get("content") == text:
            return int(token_id) if token_id.isdecimal() and len(token_id) < 10 else None
    return _id_in_tokenizer_json(source.read_json("tokenizer.json"), text)


def _id_in_tokenizer_json(tokenizer: Mapping[str, Any], text: str) -> int | None:
    for token in _as_list(tokenizer.get("added_tokens")):
        if isinstance(token, dict) and token.get("content") == text:
            return token.get("id")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary.get(text) if isinstance(vocabulary, dict) else None
