"""What a model's tokens need, counted from its modules."""

from collections.abc import Iterator

from torch import Tensor, nn

from genx.bench.limits import Work
from genx.bench.sweep import Point
from genx.core.base_model import BaseModel
from genx.core.conv1d import Conv1D
from genx.core.moe import SparseMoe


def work_of(model: BaseModel, point: Point) -> Work:
    """The bytes and operations of a point, with the model as it was loaded.

    A table of embeddings gives one row for a token, unless it is the head too, which is read whole. Of a mixture's E
    experts a token takes K: B tokens that choose independently read E (1 - (1 - K/E)^B) different ones.
    """
    active = {id(weight): share for weight, share in _shares(model, point.batch)}
    multiplied = {id(weight): share for weight, share in _shares(model, 1)}
    weight_bytes = body = head = 0.0
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parameter in model.parameters():
        is_head = parameter is model.lm_head.weight
        if id(parameter) in embeddings and not is_head:
            continue
        weight_bytes += active.get(id(parameter), 1.0) * parameter.nbytes
        if parameter.dim() >= 2:
            flop = 2 * parameter.numel() * multiplied.get(id(parameter), 1.0)
            head, body = (head + flop, body) if is_head else (head, body + flop)
    steps = range(point.depth + point.prompt_tokens + 1, point.context)
    keys = sum(_keys(model, seen) for seen in steps) / len(steps) if steps else 0.0
    prompt_keys = sum(_keys(model, point.depth + place + 1) for place in range(point.prompt_tokens))
    per_key = 4 * model.config.num_attention_heads * model.config.head_dim  # query x key, and weight x value
    return Work(
        weight_bytes=round(weight_bytes),
        cache_bytes=round(keys * _bytes_a_key(model)),
        decode_flop=round(body + head + per_key * keys),
        prefill_flop=round(point.prompt_tokens * body + head + per_key * prompt_keys),
    )


def linear_bytes(model: BaseModel) -> int:
    """What the weights of all linear layers take, the head's too."""
    linear = {id(module.weight): module.weight for module in model.modules() if isinstance(module, nn.Linear | Conv1D)}
    return sum(weight.nbytes for weight in linear.values())


def _shares(model: BaseModel, tokens: int) -> Iterator[tuple[Tensor, float]]:
    for module in model.modules():
        if isinstance(module, SparseMoe):
            skipped = 1 - module.experts_per_token / len(module.experts)
            for weight in module.experts.parameters():
                yield weight, 1 - skipped**tokens


def _keys(model: BaseModel, seen: int) -> int:
    """Keys that a token attends to in all layers, itself included, when it is the `seen`-th of its row."""
    return sum(min(seen, window or seen) for window in model.layer_windows)


def _bytes_a_key(model: BaseModel) -> int:
    """Of a key and its value, in one layer."""
    return 2 * model.config.num_key_value_heads * model.config.head_dim * model.lm_head.weight.element_size()
