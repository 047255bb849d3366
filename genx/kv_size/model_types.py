"""What the software that reads a `config.json` assumes where the file is silent, by `model_type`.

Every rule and default is that of the type's configuration class in transformers 5.24,
transformers/models/<type>/configuration_<type>.py; a test compares the two. A type that is not listed has no defaults:
what its file leaves out is asked for, never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any


class Windows(Enum):
    """Which layers a configuration's one `sliding_window` means, where no `layer_types` says so."""

    IGNORED = "the layers of this type attend to everything"
    EVERY_LAYER = "every layer"
    ALL_BUT_NTH = "every layer but each n-th"
    FROM_LAYER = "the layers from max_window_layers on, if use_sliding_window"
    EVERY_LAYER_IF_USED = "every layer, if use_sliding_window"
    ASK = "versions of transformers disagree"


@dataclass(frozen=True)
class ModelType:
    """What is known of one `model_type`.

    Attributes:
        windows: which layers slide.
        full_every: of `Windows.ALL_BUT_NTH`, the n where the file has no `sliding_window_pattern`.
        learned_positions: the model has a table of positions and cannot go beyond it.
        defaults: values of fields that a file may leave out.
        nested_defaults: more of them, for a configuration inside another one: transformers leaves out of it
            everything that equals the class's default.
    """

    windows: Windows = Windows.IGNORED
    full_every: int | None = None
    learned_positions: bool = False
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    nested_defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def _sizes(layers: int, heads: int, hidden: int, kv_heads: int | None = None, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden, **more}
    return sizes if kv_heads is None else {**sizes, "num_key_value_heads": kv_heads}


_FULL = ModelType()
_LEARNED = ModelType(learned_positions=True)
_ONE_WINDOW = ModelType(Windows.EVERY_LAYER)
_QWEN = ModelType(Windows.FROM_LAYER, defaults={"use_sliding_window": False})
_QWEN_HYBRID = ModelType(defaults={"full_attention_interval": 4})
_GEMMA_2 = ModelType(
    Windows.ALL_BUT_NTH,
    full_every=2,
    defaults={"sliding_window": 4096, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4},
)
_GEMMA_3 = ModelType(
    Windows.ALL_BUT_NTH,
    full_every=6,
    defaults={"sliding_window": 4096, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4},
    nested_defaults={"num_hidden_layers": 26, "hidden_size": 2304, "max_position_embeddings": 131072},
)
_GEMMA_3N = ModelType(
    Windows.ALL_BUT_NTH,
    full_every=5,
    defaults={
        "sliding_window": 512,
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 15,
    },
    nested_defaults={"num_hidden_layers": 35, "hidden_size": 2048, "max_position_embeddings": 32768},
)
_GEMMA_4 = ModelType(
    Windows.ALL_BUT_NTH,
    full_every=6,
    defaults={
        "sliding_window": 512,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_kv_shared_layers": 0,
    },
    nested_defaults={"num_hidden_layers": 30, "hidden_size": 2304, "max_position_embeddings": 131072},
)
_LLAMA_4 = ModelType(
    defaults={"attention_chunk_size": 8192, "head_dim": 128, "no_rope_layer_interval": 4},
    nested_defaults=_sizes(48, 40, 5120, 8, max_position_embeddings=131072),
)
_WINDOW_3_OF_4 = ModelType(Windows.ALL_BUT_NTH, full_every=4, defaults={"sliding_window": 4096})

_ATTENDING_TO_EVERYTHING = (
    "apertus", "arcee", "bloom", "chatglm", "codegen", "cohere", "dbrx", "deepseek_v2", "deepseek_v3", "ernie4_5",
    "glm", "glm4", "glm4_moe", "gpt_neox", "gptj", "granite", "granitemoe", "helium", "hunyuan_v1_dense",
    "internlm2", "minicpm", "minicpm3", "minimax_m2", "mpt", "nemotron", "olmo", "olmo2", "olmoe", "persimmon",
    "phi", "qwen", "qwen3_vl_text", "seed_oss", "stablelm", "t5",
)  # fmt: skip

MODEL_TYPES: Mapping[str, ModelType] = {
    # the six that genx runs
    "openai-gpt": _LEARNED,
    "gpt2": _LEARNED,
    "llama": ModelType(nested_defaults=_sizes(32, 32, 4096, max_position_embeddings=2048)),
    "mistral": ModelType(
        Windows.EVERY_LAYER,
        nested_defaults=_sizes(32, 32, 4096, 8, sliding_window=4096, max_position_embeddings=131072),
    ),
    "mixtral": ModelType(Windows.EVERY_LAYER, nested_defaults=_sizes(32, 32, 4096, 8, max_position_embeddings=131072)),
    "gemma": _FULL,
    # windows
    "gemma2": _GEMMA_2,
    "vaultgemma": _GEMMA_2,
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "gemma3n": _GEMMA_3N,
    "gemma3n_text": _GEMMA_3N,
    "gemma4": _GEMMA_4,
    "gemma4_text": _GEMMA_4,
    "gpt_oss": ModelType(
        Windows.ALL_BUT_NTH,
        full_every=2,
        defaults={"sliding_window": 128, "head_dim": 64, "num_key_value_heads": 8},
    ),
    "cohere2": _WINDOW_3_OF_4,
    "olmo3": _WINDOW_3_OF_4,
    "exaone4": _WINDOW_3_OF_4,
    "phi3": _ONE_WINDOW,
    "phimoe": _ONE_WINDOW,
    "starcoder2": _ONE_WINDOW,
    "ministral": _ONE_WINDOW,
    "qwen2": _QWEN,
    "qwen3": _QWEN,
    "qwen2_vl": _QWEN,
    "qwen2_vl_text": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen2_5_vl_text": _QWEN,
    "qwen3_moe": ModelType(Windows.EVERY_LAYER_IF_USED, defaults={"use_sliding_window": False}),
    "qwen2_moe": ModelType(Windows.ASK, defaults={"use_sliding_window": False}),
    "smollm3": ModelType(Windows.ASK, defaults={"use_sliding_window": False}),
    # chunks
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    # linear attention, Mamba and other recurrent layers
    "qwen3_next": _QWEN_HYBRID,
    "qwen3_5": _QWEN_HYBRID,
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID,
    "jamba": ModelType(defaults={"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2}),
    "recurrent_gemma": ModelType(Windows.EVERY_LAYER, defaults={"sliding_window": 2048}),
    # learned positions
    "gpt_neo": ModelType(learned_positions=True, defaults={"sliding_window": 256}),
    "gpt_bigcode": ModelType(learned_positions=True, defaults={"multi_query": True}),
    "opt": _LEARNED,
    "xglm": _FULL,
    "biogpt": _LEARNED,
    "whisper": _LEARNED,
    "bart": _LEARNED,
    "mbart": _LEARNED,
    # full attention
    "falcon": ModelType(defaults={"multi_query": True, "new_decoder_architecture": False}),
    "RefinedWebModel": ModelType(defaults={"multi_query": True, "new_decoder_architecture": False}),
    **dict.fromkeys(_ATTENDING_TO_EVERYTHING, _FULL),
}

# Encoders read their text at once and keep nothing.
WITHOUT_CACHE = frozenset(
    {
        "albert",
        "bert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "modernbert",
        "mpnet",
        "roberta",
        "xlm-roberta",
    }
)

# Caches whose rules are known to differ from everything here.
NOT_COVERED: Mapping[str, str] = {
    "deepseek_v4": "its layers keep keys compressed over several tokens",
    "longcat_flash": "each of its layers holds two attention blocks",
    "phi4flash": "half of its layers read one shared cache",
    "zamba": "its attention layers are shared and read twice the hidden size",
}


def known(model_type: str | None) -> ModelType | None:
    """The entry of a `model_type`, None if there is none."""
    return None if model_type is None else MODEL_TYPES.get(model_type)
