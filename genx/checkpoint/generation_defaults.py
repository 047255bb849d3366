"""What a checkpoint says about generating: ids that stop, fill and begin, and its sampling values. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genx.checkpoint.folder import read_config_json, read_json_in
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


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read them from generation_config.json, config.json and the tokenizer's files, whichever there are.

    The ids that stop are the union of all three. The pad and BOS ids are the first valid ones of generation_config
    and config. An id counts only if it is a whole number inside the embedding: -1, null and what lies beyond
    `vocab_size` mean none.

    Raises:
        CheckpointError: there is no config.json, or a file leads outside the folder or is no JSON object.
        ConfigError: a file is not JSON, or too large.
    """
    folder = Path(folder)
    config = read_config_json(folder)
    generation = read_json_in(folder, "generation_config.json")
    size = config.get("vocab_size")
    vocab_size = size if is_whole_number(size) else None
    stops = [*_as_list(generation.get("eos_token_id")), *_as_list(config.get("eos_token_id"))]
    stops.append(_tokenizer_eos_id(folder))
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


def _tokenizer_eos_id(folder: Path) -> int | None:
    """The id of the text that the tokenizer's files call eos_token."""
    settings = read_json_in(folder, "tokenizer_config.json")
    eos = settings.get("eos_token") or read_json_in(folder, "special_tokens_map.json").get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    if not isinstance(text, str):
        return None
    added = settings.get("added_tokens_decoder")
    for token_id, token in added.items() if isinstance(added, dict) else ():
        if isinstance(token, dict) and token.get("content") == text:
            return int(token_id) if token_id.isdecimal() and len(token_id) < 10 else None
    return _id_in_tokenizer_json(read_json_in(folder, "tokenizer.json"), text)


def _id_in_tokenizer_json(tokenizer: Mapping[str, Any], text: str) -> int | None:
    for token in _as_list(tokenizer.get("added_tokens")):
        if isinstance(token, dict) and token.get("content") == text:
            return token.get("id")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary.get(text) if isinstance(vocabulary, dict) else None
