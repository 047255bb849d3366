"""The working of an answer: which fields were used, where they came from, and the formula with its numbers in."""

from collections.abc import Callable, Sequence

from genx.kv_size.allocation import Part
from genx.kv_size.engines import ENGINES
from genx.kv_size.layer_kinds import CHUNKED, RECURRENT
from genx.kv_size.layers import LATENT
from genx.kv_size.plan import Answer
from genx.messages import printable

_LONGEST_VALUE = 60


def settings_line(found: Answer, shown: Sequence[str]) -> str:
    """`mistral-7b: head_dim 128, explicit; ...` for the fields that matter most."""
    fields = found.question.model.fields
    told = "; ".join(_field(name, fields[name].value, fields[name].origin) for name in shown if name in fields)
    return f"{printable(found.question.name)}: {told}"


def formula_line(found: Answer) -> str:
    """`32 layers x 8 kv heads x (128 + 128) x 4,096 positions x 2 bytes = ...`, one summand a group of layers."""
    summands = [_summand(found, part) for part in found.size.parts if part.kv_bytes]
    total = f"{found.size.kv_bytes:,} bytes" if found.size.kv_bytes else "0 bytes: no keys and values are kept"
    return f"  = {' + '.join(summands)} = {total}" if summands else f"  = {total}"


def explanation(found: Answer, human: Callable[[int | None], str]) -> list[str]:
    """Everything: settings with their defaults, fields, groups of layers, the rule, the element types, notes."""
    question, request = found.question, found.question.request
    lines = [f"{printable(question.name)} ({printable(question.model.model_type or 'no model_type')})", "  request"]
    lines += [f"    {line}" for line in _request_lines(found)]
    lines.append("  fields")
    lines += [f"    {_field(name, field.value, field.origin)}" for name, field in question.model.fields.items()]
    lines.append("  groups of layers")
    lines += [f"    {_group(found, part, human)}" for part in found.size.parts]
    lines.append(f"  rule {request.engine}: {ENGINES[request.engine].rule}")
    for dtype in {request.key_dtype.name: request.key_dtype, request.value_dtype.name: request.value_dtype}.values():
        lines.append(f"  {dtype.describe()}")
    lines += [f"  warning: {printable(warning)}" for warning in found.warnings]
    lines += [f"  note: {printable(note)}" for note in question.model.notes]
    return [*lines, formula_line(found)]


def _request_lines(found: Answer) -> list[str]:
    request, model = found.question.request, found.question.model
    sequences = " + ".join(f"{count:,} x {tokens:,} tokens" for count, tokens in request.sequences)
    lines = [sequences + ("" if request.longest != model.positions else ", the model's context")]
    if request.encoder_tokens:
        lines.append(f"{request.encoder_tokens:,} tokens of the encoder's output")
    weights = found.question.weights
    lines.append(f"weights {'none' if weights is None else f'{weights:,} bytes'}")
    if request.tensor_parallel > 1 or request.pipeline_parallel > 1:
        lines.append(f"tp {request.tensor_parallel}, pp {request.pipeline_parallel}: sizes are of the fullest GPU")
    knobs = {
        "llama.cpp": f"slots {request.slots_in_use}, n_ctx {request.context:,}, ubatch {request.ubatch}",
        "vllm": f"block size {request.block_size}, batched tokens {request.max_num_batched_tokens:,}",
    }
    return lines + ([knobs[request.engine]] if request.engine in knobs else [])


def _field(name: str, value: object, origin: str) -> str:
    text = printable(value if isinstance(value, str) else repr(value))
    if len(text) > _LONGEST_VALUE:
        text = text[: _LONGEST_VALUE - 3] + "..."
    return f"{name} {text}, {printable(origin)}"


def _summand(found: Answer, part: Part) -> str:
    """Bytes of a position, then how many positions and layers there are."""
    each = part.kv_bytes // (part.layers * part.positions) if part.positions and not part.note else None
    kind = f"{part.layers} {part.layer.kind}"
    if each is None:
        return f"{kind} {part.kv_bytes:,}"
    return f"{kind} x {part.positions:,} x {_position(found, part, each)}"


def _position(found: Answer, part: Part, each: int) -> str:
    layer, request = part.layer, found.question.request
    key, value = request.key_dtype, request.value_dtype
    plain = key == value and not key.scale_bytes and key.bits % 8 == 0
    divided = request.tensor_parallel > 1 or request.engine in ("hf", "vllm")
    if not plain or divided:
        return f"{each:,} bytes"
    width = key.bits // 8
    if layer.kind == LATENT:
        return f"{layer.key_size} x {width} bytes"
    if layer.key_size == layer.value_size:
        return f"2 x {layer.kv_heads} x {layer.key_size} x {width} bytes"
    return f"{layer.kv_heads} x ({layer.key_size} + {layer.value_size}) x {width} bytes"


def _group(found: Answer, part: Part, human: Callable[[int | None], str]) -> str:
    layer = part.layer
    if layer.kind == RECURRENT:
        return f"{part.layers} recurrent: no keys and values; state {human(part.state_bytes)}"
    shape = f"{layer.kv_heads} kv heads x ({layer.key_size} + {layer.value_size})"
    if layer.shares_with is not None:
        return f"{part.layers} {layer.kind}: {shape}, read from layer {layer.shares_with}, nothing of its own"
    window = "" if layer.window is None else f", {'chunk' if layer.kind == CHUNKED else 'window'} {layer.window:,}"
    note = f", {part.note}" if part.note else ""
    return f"{part.layers} {layer.kind}: {shape}{window}, {part.positions:,} positions, {human(part.kv_bytes)}{note}"
