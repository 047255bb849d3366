"""What a model's tokens need, counted from its modules."""

from collections.abc import Iterator

from torch import nn

from genx.bench.limits import Work
from genx.bench.sweep import Point
from genx.core.base_model import BaseModel
from genx.core.moe import SparseMoe
from genx.kernels.blocks import KernelEmbedding
from genx.kernels.linear import KernelLinear
from genx.models.gpt_oss import GptOssMoe


def work_of(model: BaseModel, point: Point) -> Work:
    """The bytes and operations of a point, with the model as it is held in memory.

    A table of embeddings gives one row for a token, unless it is the head too, which is read whole. Of a mixture's E
    experts a token takes K: B tokens that choose independently read E (1 - (1 - K/E)^B) different ones.
    """
    read, multiplied = _shares(model, point.batch), _shares(model, 1)
    weight_bytes = body = head = 0.0
    for module in model.modules():
        for nbytes, numbers in _held(module):
            weight_bytes += read.get(id(module), 1.0) * nbytes
            flop = 2 * numbers * multiplied.get(id(module), 1.0)
            head, body = (head + flop, body) if module is model.lm_head else (head, body + flop)
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


def _held(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Of each weight that the module itself holds and reads whole: its bytes, and how many numbers it multiplies by."""
    if isinstance(module, KernelLinear):
        yield module.weight_nbytes, module.out_features * module.in_features
        if module.bias is not None:
            yield module.bias.nbytes, 0
    elif not isinstance(module, nn.Embedding | KernelEmbedding):
        for parameter in module.parameters(recurse=False):
            yield parameter.nbytes, parameter.numel() if parameter.dim() > 1 else 0


def _shares(model: BaseModel, tokens: int) -> dict[int, float]:
    """By the ids of experts and their parts: the share of them that so many tokens choose."""
    return {
        id(part): 1 - (1 - module.experts_per_token / model.config.num_local_experts) ** tokens
        for module in model.modules()
        if isinstance(module, SparseMoe | GptOssMoe)
        for part in module.experts.modules()
    }


def _keys(model: BaseModel, seen: int) -> int:
    """Keys that a token attends to in all layers, itself included, when it is the `seen`-th of its row."""
    return sum(min(seen, window or seen) for window in model.layer_windows)


def _bytes_a_key(model: BaseModel) -> int:
    """Of a key and its value, in one layer."""
    return 2 * model.config.num_key_value_heads * model.config.head_dim * model.cache_dtype.itemsize
