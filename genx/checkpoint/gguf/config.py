"""A GGUF file's metadata as the config.json of the model that it was converted from. No torch.

Keys: llama.cpp, gguf-py/gguf/constants.py; which model writes which of them: its conversion/*.py; what it takes
where a key is absent: its src/models/*.cpp.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from genx.checkpoint.gguf.facts import Facts
from genx.checkpoint.gguf.rotary import rotary_fields
from genx.errors import CheckpointError
from genx.gguf.names import MODEL_TYPES
from genx.gguf.parts import GgufModel
from genx.gguf.vocabulary import special_ids
from genx.messages import printable
from genx.models.registry import ARCHITECTURES

Fields = dict[str, Any]

_SIZES: Mapping[str, str] = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_GEMMA_ACTIVATION = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
# The largest model of each generation divides by another number than the head's size, which no key says.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}


def model_type_of(model: GgufModel) -> str:
    """The `model_type` of the architecture that the file was converted from.

    Raises:
        CheckpointError: it names none, or one that genx does not have.
    """
    facts = Facts(model)
    model_type = MODEL_TYPES.get(facts.architecture, facts.architecture)
    if model_type == "llama" and facts.integer("expert_count"):
        model_type = "mixtral"
    elif model_type == "llama" and facts.integer("attention.sliding_window"):
        model_type = "mistral"
    if model_type not in _FIELDS or model_type not in ARCHITECTURES:
        raise CheckpointError(
            f"{printable(model.path)} has the architecture {printable(facts.architecture)}; "
            f"as GGUF genx reads {', '.join(sorted(_FIELDS))}"
        )
    return model_type


def config_json(model: GgufModel) -> Fields:
    """What config.json would hold.

    Raises:
        CheckpointError: the architecture is not known, or a key holds something else than it should.
    """
    model_type = model_type_of(model)
    facts = Facts(model)
    embedding = model.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{printable(model.path)} has no token_embd.weight with two dimensions; get the whole file"
        )
    fields: Fields = {
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in model.tensors,
    }
    fields |= {name: value for key, name in _SIZES.items() if (value := facts.integer(key)) is not None}
    fields |= {name: value for name, value in _FIELDS[model_type](model, facts, fields).items() if value is not None}
    renamed = _OWN_NAMES.get(model_type, {})
    return {**{renamed.get(name, name): value for name, value in fields.items()}, **_ids(model)}


def _ids(model: GgufModel) -> Fields:
    roles = special_ids(model.metadata)
    return {f"{role}_token_id": roles.get(f"{role}_token") for role in ("bos", "eos", "pad")}


def _head_dim(facts: Facts, fields: Fields) -> int:
    explicit = facts.integer("attention.key_length")
    if explicit:
        return explicit
    return int(fields.get("hidden_size", 0)) // max(1, int(fields.get("num_attention_heads", 1)))


def _decoder(model: GgufModel, facts: Facts, fields: Fields, *, theta: float = 10_000.0) -> Fields:
    """What the LLaMA family has in common."""
    head_dim = _head_dim(facts, fields)
    return {
        "hidden_act": "silu",
        "head_dim": head_dim,
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        **rotary_fields(model, facts, head_dim, theta=theta),
    }


def _has(model: GgufModel, name: str) -> bool:
    return f"blk.0.{name}" in model.tensors


def _llama(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    biases = {"attention_bias": _has(model, "attn_q.bias"), "mlp_bias": _has(model, "ffn_gate.bias")}
    return {**_decoder(model, facts, fields), **biases}


def _mistral(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    return {**_decoder(model, facts, fields), "sliding_window": facts.integer("attention.sliding_window")}


def _mixtral(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    return {**_mistral(model, facts, fields), **_experts(facts)}


def _experts(facts: Facts) -> Fields:
    return {
        "num_local_experts": facts.integer("expert_count"),
        "num_experts_per_tok": facts.integer("expert_used_count"),
    }


def _gemma(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    return {**_decoder(model, facts, fields), **_GEMMA_ACTIVATION}


def _gemma_scaled(model: GgufModel, facts: Facts, fields: Fields, *, theta: float = 10_000.0) -> Fields:
    common = _decoder(model, facts, fields, theta=theta)
    heads = int(fields.get("num_attention_heads", 1))
    is_27b = fields.get("num_hidden_layers") == _GEMMA_27B_LAYERS[facts.architecture]
    return {
        **common,
        **_GEMMA_ACTIVATION,
        "sliding_window": facts.integer("attention.sliding_window"),
        "query_pre_attn_scalar": int(fields.get("hidden_size", 0)) // max(1, heads) if is_27b else common["head_dim"],
    }


def _gemma2(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    caps = {
        "attn_logit_softcapping": facts.number("attn_logit_softcapping") or 50.0,
        "final_logit_softcapping": facts.number("final_logit_softcapping") or 30.0,
    }
    return {**_gemma_scaled(model, facts, fields), **caps}


def _gemma3(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    if facts.number("final_logit_softcapping"):
        raise CheckpointError(f"{printable(model.path)} caps its logits, which genx's Gemma 3 does not")
    local = facts.number("rope.freq_base_swa")
    return {
        **_gemma_scaled(model, facts, fields, theta=1e6),
        "rope_local_base_freq": 1e4 if local is None else local,
        **_pattern(facts, 6),
    }


def _pattern(facts: Facts, every: int) -> Fields:
    """Which layers slide: all but each `every`-th, a number of the file's own, or one truth value a layer."""
    pattern = facts.value("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    return {"sliding_window_pattern": facts.integer("attention.sliding_window_pattern") or every}


def _qwen3_moe(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    layers = min(int(fields.get("num_hidden_layers", 0)), len(model.tensors))
    return {
        **_decoder(model, facts, fields),
        "num_experts": facts.integer("expert_count"),
        "num_experts_per_tok": facts.integer("expert_used_count"),
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer in range(layers) if f"blk.{layer}.ffn_gate.weight" in model.tensors],
    }


def _phi3(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    common = _decoder(model, facts, fields)
    rotary = facts.integer("rope.dimension_count") or common["head_dim"]
    original = facts.integer("rope.scaling.original_context_length")
    return {
        **common,
        "partial_rotary_factor": rotary / max(1, common["head_dim"]),
        "original_max_position_embeddings": original,
        "sliding_window": facts.integer("attention.sliding_window") or None,
    }


def _gpt2(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    del model, fields
    return {"hidden_act": "gelu_new", "norm_eps": facts.number("attention.layer_norm_epsilon")}


def _gpt_neox(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    head_dim = _head_dim(facts, fields)
    parallel = facts.value("use_parallel_residual")
    return {
        "hidden_act": "gelu",
        "layer_norm_eps": facts.number("attention.layer_norm_epsilon"),
        "rotary_pct": (facts.integer("rope.dimension_count") or head_dim) / max(1, head_dim),
        "use_parallel_residual": parallel is not False,
        "attention_bias": _has(model, "attn_qkv.bias"),
        **rotary_fields(model, facts, head_dim),
    }


def _olmo2(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    if facts.integer("attention.sliding_window"):
        raise CheckpointError(f"{printable(model.path)} is an OLMo 3, with windows; genx has OLMo 2")
    return {**_decoder(model, facts, fields), "attention_bias": _has(model, "attn_q.bias")}


def _smollm3(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    return {**_llama(model, facts, fields), "no_rope_layer_interval": 4}


def _starcoder2(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": facts.number("attention.layer_norm_epsilon"),
        "use_bias": _has(model, "attn_q.bias"),
        "sliding_window": facts.integer("attention.sliding_window") or None,
        **rotary_fields(model, facts, _head_dim(facts, fields)),
    }


def _cohere(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    return {
        "hidden_act": "silu",
        "layer_norm_eps": facts.number("attention.layer_norm_epsilon"),
        "logit_scale": facts.number("logit_scale"),
        "use_qk_norm": _has(model, "attn_q_norm.weight"),
        "attention_bias": _has(model, "attn_q.bias"),
        **rotary_fields(model, facts, _head_dim(facts, fields)),
    }


def _gpt_oss(model: GgufModel, facts: Facts, fields: Fields) -> Fields:
    common = _decoder(model, facts, fields, theta=1.5e5)
    if common.get("rope_scaling", {}).get("rope_type") == "yarn":
        # Always so in gpt-oss, and no key says it: the bounds of the blended channels are not rounded.
        common["rope_scaling"] = {"beta_fast": 32.0, "beta_slow": 1.0, **common["rope_scaling"], "truncate": False}
    return {
        **common,
        **_experts(facts),
        "intermediate_size": facts.integer("expert_feed_forward_length"),
        "sliding_window": facts.integer("attention.sliding_window"),
        "attention_bias": True,
    }


_FIELDS: Mapping[str, Callable[[GgufModel, Facts, Fields], Fields]] = {
    "cohere": _cohere,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _decoder,
    "qwen3": _decoder,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
}
GGUF_MODEL_TYPES: Collection[str] = _FIELDS.keys()
"""What is read from GGUF files."""

# What transformers looks for, where it is not the common name.
_OWN_NAMES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "hidden_act": "activation_function",
        "norm_eps": "layer_norm_epsilon",
    },
}
