"""llama.cpp's names of architectures and of their sizes, and what a config.json calls them.

Source: llama.cpp, src/llama-arch.cpp (LLM_KV_NAMES) and gguf-py/gguf/constants.py.
"""

from collections.abc import Mapping

# llama.cpp's names of architectures, where they differ from the model_type whose rules they follow.
MODEL_TYPES: Mapping[str, str] = {
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "falcon-h1": "falcon_h1",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "granitehybrid": "granitemoehybrid",
    "hunyuan-dense": "hunyuan_v1_dense",
    "llama4": "llama4_text",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen35": "qwen3_5",
    "qwen35moe": "qwen3_5_moe",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "starcoder": "gpt_bigcode",
}

# What the configuration calls a key of the architecture.
CONFIG_NAMES: Mapping[str, str] = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.key_length_swa": "swa_head_dim",
    "attention.value_length_swa": "swa_v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.indexer.key_length": "index_head_dim",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "shortconv.l_cache": "conv_L_cache",
}
