"""Which class reads a checkpoint of which `model_type`. Torch is imported with the class, not before."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from genx.errors import CheckpointError

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

ARCHITECTURES: Mapping[str, str] = {
    "openai-gpt": "genx.models.gpt:GPT",
    "gpt2": "genx.models.gpt2:GPT2",
    "llama": "genx.models.llama:Llama",
    "mistral": "genx.models.mistral:Mistral",
    "mixtral": "genx.models.mixtral:Mixtral",
    "gemma": "genx.models.gemma:Gemma",
    "qwen2": "genx.models.qwen2:Qwen2",
    "qwen3": "genx.models.qwen3:Qwen3",
    "qwen3_moe": "genx.models.qwen3_moe:Qwen3Moe",
    "smollm3": "genx.models.smollm3:SmolLM3",
    "olmo2": "genx.models.olmo2:Olmo2",
    "starcoder2": "genx.models.starcoder2:StarCoder2",
    "phi3": "genx.models.phi3:Phi3",
    "gemma2": "genx.models.gemma2:Gemma2",
    "gemma3_text": "genx.models.gemma3:Gemma3",
    "cohere": "genx.models.cohere:Cohere",
    "gpt_neox": "genx.models.gpt_neox:GPTNeoX",
    "gpt_oss": "genx.models.gpt_oss:GptOss",
}


def model_class(model_type: str) -> type["BaseModel"]:
    """The class of an architecture.

    Raises:
        CheckpointError: genx does not know it.
    """
    if model_type not in ARCHITECTURES:
        raise CheckpointError(f"model_type is {model_type!r}; allowed: {', '.join(sorted(ARCHITECTURES))}")
    module, name = ARCHITECTURES[model_type].split(":")
    found: type[BaseModel] = getattr(import_module(module), name)
    return found
