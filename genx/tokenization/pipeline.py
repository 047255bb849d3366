"""The parts of a tokenizer as tokenizer.json describes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Step = Mapping[str, Any]


def steps_of(component: Any) -> list[Step] | None:
    """The steps of a decoder, pre-tokenizer or post-processor of the `tokenizers` library, sequences dissolved.

    None where the tokenizer has no such component.
    """
    return None if component is None else _flatten(json.loads(component.__getstate__()))


def has_byte_level(steps: Sequence[Step] | None) -> bool:
    """Whether one of the steps is ByteLevel."""
    return any(step.get("type") == "ByteLevel" for step in steps or ())


def prompt_prefix_id(post_processor: Sequence[Step] | None) -> int | None:
    """The id that a post-processor puts before every text, or None."""
    for step in post_processor or ():
        match step:
            case {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": text}}, *_]}:
                return int(step["special_tokens"][text]["ids"][0])
            case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, token_id]}:
                return int(token_id)
    return None


def _flatten(description: Step) -> list[Step]:
    if description.get("type") != "Sequence":
        return [description]
    keys = ("decoders", "pretokenizers", "processors")
    return [step for key in keys for member in description.get(key, ()) for step in _flatten(member)]
