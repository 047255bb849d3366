"""The 25 ways in which calculators of the KV cache go wrong, and the public reports of them."""

from typing import Any

import pytest

from tests.kv_size.command import kv_object, kv_objects, kv_size, refusal

MIB = 1 << 20
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 4096,
}
MISTRAL = {**LLAMA, "model_type": "mistral"}
QWEN = {**LLAMA, "model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 4}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def kv_bytes(config: dict[str, Any], tokens: int, *more: str) -> int:
    return int(kv_object("-t", str(tokens), "--kv-dtype", "fp16", *more, config=config)["kv_bytes"])


def field(config: dict[str, Any], name: str, tokens: int = 1) -> tuple[Any, str]:
    found = kv_object("-t", str(tokens), config=config)["fields"][name]
    return found["value"], found["origin"]


class TestPublicReports:
    def test_vllm_fit_2_query_heads_do_not_count(self) -> None:
        assert kv_bytes(LLAMA, 1) == 64

    def test_lmcache_688_head_dim_comes_first(self) -> None:
        config = {**without(LLAMA, "num_key_value_heads"), "hidden_size": 20, "num_attention_heads": 2, "head_dim": 16}
        assert kv_bytes(config, 1) == 2 * 2 * 2 * 16 * 2

    @pytest.mark.parametrize(("window", "expected"), [(None, 10 * 64), (4, 4 * 64), (16, 10 * 64)])
    def test_hf_mem_64_a_null_window_is_no_window(self, window: int | None, expected: int) -> None:
        assert kv_bytes({**MISTRAL, "sliding_window": window}, 10) == expected

    @pytest.mark.parametrize(("kv_heads", "expected"), [(2, 64), (4, 128)])
    def test_llms_from_scratch_922_kv_heads_are_a_count_not_a_divisor(self, kv_heads: int, expected: int) -> None:
        assert kv_bytes({**LLAMA, "num_key_value_heads": kv_heads}, 1) == expected


class TestHeads:
    @pytest.mark.parametrize("absent", [None, 0])
    def test_1_head_dim_null_or_0_is_absent(self, absent: int | None) -> None:
        assert kv_bytes({**LLAMA, "head_dim": absent}, 1) == 64

    def test_1_explicit_head_dim_wins(self) -> None:
        assert kv_object("qwen3-4b", "-t", "8192")["kv_bytes"] == 1152 * MIB  # hidden / heads = 80 would give 720
        assert field({**LLAMA, "head_dim": 16}, "head_dim") == (16, "explicit")

    def test_2_no_kv_heads_is_multi_head_attention_and_says_so(self) -> None:
        for config in (without(LLAMA, "num_key_value_heads"), {**LLAMA, "num_key_value_heads": None}):
            assert kv_bytes(config, 1) == 256
            value, origin = field(config, "num_key_value_heads")
            assert (value, origin) == (
                8,
                "no num_key_value_heads, so MHA: as many as num_attention_heads",
            )

    @pytest.mark.parametrize(
        "name", ["n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups"]
    )
    def test_2_the_names_of_kv_heads(self, name: str) -> None:
        assert kv_bytes({**without(LLAMA, "num_key_value_heads"), name: 4}, 1) == 128

    def test_2_kv_heads_in_attn_config_and_block_configs(self) -> None:
        plain = without(LLAMA, "num_key_value_heads")
        assert kv_bytes({**plain, "model_type": "dbrx", "attn_config": {"kv_n_heads": 4}}, 1) == 128
        blocks = [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}]
        assert kv_bytes({**plain, "model_type": "nemotron-nas", "block_configs": blocks}, 1) == 32

    def test_2_two_names_that_disagree_are_refused(self) -> None:
        text = refusal("-t", "1", config={**LLAMA, "num_kv_heads": 4})
        assert text == (
            "stdin: num_kv_heads is 4 and num_key_value_heads is 2, two names of one thing; say which with --kv-heads"
        )

    @pytest.mark.parametrize(
        ("flags", "kv_heads"),
        [
            ({"multi_query": True, "new_decoder_architecture": False}, 1),
            ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2}, 2),
            ({"multi_query": False}, 8),
            ({}, 1),  # multi_query is the default of Falcon's configuration class
        ],
    )
    def test_3_falcon_multi_query(self, flags: dict[str, Any], kv_heads: int) -> None:
        config = {**without(LLAMA, "num_key_value_heads"), "model_type": "falcon", **flags}
        assert kv_object("-t", "1", config=config)["layers"][0]["kv_heads"] == kv_heads

    def test_3_gpt_bigcode_and_chatglm(self) -> None:
        bigcode = {"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 8, "n_embd": 32, "n_positions": 64}
        assert kv_bytes(bigcode, 1) == 32
        chatglm = {
            "model_type": "chatglm", "num_layers": 2, "num_attention_heads": 8, "hidden_size": 32, "kv_channels": 4,
            "multi_query_attention": True, "multi_query_group_num": 2, "seq_length": 64,
        }  # fmt: skip
        assert kv_bytes(chatglm, 1) == 64

    def test_12_gpt_2_whisper_and_bart_names(self) -> None:
        assert kv_object("gpt2", "--kv-dtype", "fp16")["kv_bytes"] == 36 * MIB
        bart = {
            "model_type": "bart", "is_encoder_decoder": True, "d_model": 32, "decoder_layers": 2, "encoder_layers": 7,
            "decoder_attention_heads": 8, "num_hidden_layers": 7, "max_position_embeddings": 64,
        }  # fmt: skip
        assert kv_bytes(bart, 10, "--encoder-tokens", "5") == 2 * 2 * 32 * (10 + 5) * 2


class TestWindows:
    def test_4_use_sliding_window_false(self) -> None:
        assert kv_bytes({**QWEN, "use_sliding_window": False, "max_window_layers": 0}, 10) == 4 * 32 * 10
        assert kv_bytes(QWEN, 10) == 4 * 32 * 10  # false is the default of its configuration class

    def test_4_only_layers_from_max_window_layers_on_slide(self) -> None:
        config = {**QWEN, "use_sliding_window": True, "max_window_layers": 3}
        assert kv_bytes(config, 10) == 32 * (3 * 10 + 1 * 4)

    @pytest.mark.parametrize("window", [None, 0, -1])
    def test_5_null_0_and_minus_1_are_no_window(self, window: int | None) -> None:
        assert kv_bytes({**MISTRAL, "sliding_window": window}, 10) == 640

    def test_5_other_negative_windows_are_refused(self) -> None:
        text = refusal("-t", "1", config={**MISTRAL, "sliding_window": -4096})
        assert text == "stdin: sliding_window is -4096; allowed: a whole number from 1 to 1,099,511,627,776"

    def test_6_layer_types_beat_pattern_beats_class_default(self) -> None:
        gemma = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 4, "head_dim": 4}
        assert kv_bytes(gemma, 10) == 32 * (5 * 4 + 10)
        assert kv_bytes({**gemma, "sliding_window_pattern": 2}, 10) == 32 * (3 * 4 + 3 * 10)
        types = ["full_attention"] * 5 + ["sliding_attention"]
        assert kv_bytes({**gemma, "sliding_window_pattern": 2, "layer_types": types}, 10) == 32 * (5 * 10 + 4)

    def test_6_gemma_3_has_10_full_layers_of_62(self) -> None:
        groups = {group["kind"]: group["layers"] for group in kv_object("gemma-3-27b")["layers"]}
        assert groups == {"sliding": 52, "full": 10}

    def test_7_gemma_3_defaults_are_named(self) -> None:
        text = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "sliding_window": 1024}
        found = kv_object("-t", "3072", config={"model_type": "gemma3", "text_config": text})
        assert found["kv_bytes"] == 2 * 4 * 256 * 2 * (5 * 3072 + 29 * 1024)
        assert found["fields"]["head_dim"] == {"value": 256, "origin": "from gemma3_text defaults"}
        assert found["fields"]["sliding_window_pattern"] == {"value": 6, "origin": "from gemma3_text defaults"}

    def test_22_the_dynamic_cache_keeps_one_position_less(self) -> None:
        config = {**MISTRAL, "sliding_window": 4}
        assert [kv_bytes(config, 10, "--engine", engine) for engine in ("ideal", "hf")] == [64 * 4, 64 * 3]

    def test_25_phi_3_mini_4k(self) -> None:
        assert kv_object("phi-3-mini-4k", "--kv-dtype", "fp16")["kv_bytes"] == 804913152
        assert kv_object("phi-3-mini-4k", "--kv-dtype", "fp16", "--engine", "full")["kv_bytes"] == 1536 * MIB
        assert kv_object("phi-3-mini-4k", "--engine", "llama.cpp")["kv_bytes"] == 1536 * MIB

    def test_windows_show_floor_and_worst_case_unasked(self) -> None:
        text = kv_size("gemma-3-27b").text
        assert "10.41 GiB" in text
        assert "62.00 GiB" in text


class TestOtherCaches:
    def test_8_recurrent_layers_cost_a_state_and_nothing_a_token(self) -> None:
        found = kv_object("qwen3.5-27b", "-t", "262144", "-b", "2")
        assert found["kv_bytes"] == 32 << 30
        state = 2 * 48 * 4 * (3 * (2 * 16 * 128 + 48 * 128) + 48 * 128 * 128)
        assert (found["state_bytes"], found["total_bytes"]) == (state, (32 << 30) + state)
        assert kv_object("qwen3.5-27b", "-t", "0")["kv_bytes"] == 0

    def test_8_a_state_that_cannot_be_known_is_null_with_a_note(self) -> None:
        config = {**LLAMA, "model_type": "qwen3_5", "layer_types": ["linear_attention", "full_attention"]}
        found = kv_object("-t", "10", config=config)
        assert (found["kv_bytes"], found["state_bytes"], found["total_bytes"]) == (320, None, None)
        assert found["notes"] == [
            "the recurrent state is unknown: no linear_*, mamba_*, conv_L_cache or lru_width fields; "
            "give its bytes with --state-bytes"
        ]
        given = kv_object("-t", "10", "-b", "3", "--state-bytes", "1001", config=config)
        assert (given["state_bytes"], given["total_bytes"]) == (3003, 3 * 320 + 3003)

    def test_8_an_unknown_state_cannot_be_said_to_fit(self) -> None:
        config = {**LLAMA, "model_type": "qwen3_5", "layer_types": ["linear_attention", "full_attention"]}
        assert "--state-bytes" in refusal("-t", "10", "--memory", "1GiB", config=config)

    def test_8_an_unknown_kind_is_refused_by_name(self) -> None:
        text = refusal("-t", "1", config={**LLAMA, "layer_types": ["full_attention", "wavelet_attention"]})
        assert "'wavelet_attention'" in text
        assert "--layer-types" in text

    def test_9_mla_keeps_one_latent_and_no_values(self) -> None:
        found = kv_object("deepseek-v3", "-t", "163840")
        assert found["kv_bytes"] == 61 * 163840 * 576 * 2
        assert [found["layers"][0][name] for name in ("kind", "kv_heads", "key_size", "value_size")] == [
            "latent", 1, 576, 0,
        ]  # fmt: skip

    def test_9_tensor_parallelism_does_not_divide_a_latent(self) -> None:
        whole, eighth = (kv_object("deepseek-v3", "-t", "4096", "--tp", n) for n in ("1", "8"))
        assert whole["kv_bytes"] == eighth["kv_bytes"]
        assert (whole["replicated"], eighth["replicated"]) == (False, True)

    def test_9_transformers_holds_mla_uncompressed(self) -> None:
        held, floor = (
            kv_object("deepseek-v3", "-t", "4096", "--engine", engine)["kv_bytes"] for engine in ("hf", "ideal")
        )
        assert (held, held // floor) == (20468203520, 71)

    def test_10_layers_that_share_own_no_cache(self) -> None:
        config = {**LLAMA, "model_type": "gemma3n_text", "num_hidden_layers": 35, "sliding_window": 4, "head_dim": 4}
        config["num_kv_shared_layers"] = 15
        found = kv_object("-t", "10", "--kv-dtype", "fp16", config=config)
        assert found["kv_bytes"] == 32 * (4 * 10 + 16 * 4)
        readers = [group for group in found["layers"] if group["shares_with"] is not None]
        assert [(group["layers"], group["kv_bytes"]) for group in readers] == [(12, 0), (3, 0)]

    def test_10_hunyuan_shares_with_neighbours(self) -> None:
        config = {**LLAMA, "model_type": "hunyuan", "num_hidden_layers": 4, "use_cla": True, "cla_share_factor": 2}
        assert kv_bytes(config, 1) == 64
        assert kv_bytes({**config, "use_cla": False}, 1) == 128

    def test_11_shapes_differ_from_layer_to_layer(self) -> None:
        gemma = {
            **LLAMA, "model_type": "gemma4_text", "num_hidden_layers": 2, "head_dim": 4, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 16,
            "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
        }  # fmt: skip
        assert kv_bytes(gemma, 10) == 2 * 2 * 4 * 2 * 4 + 2 * 1 * 16 * 2 * 10
        assert kv_bytes({**LLAMA, "num_key_value_heads": [2, 8]}, 1) == 32 + 128
        assert kv_bytes({**LLAMA, "v_head_dim": 1}, 1) == 2 * 2 * (4 + 1) * 2

    def test_13_the_text_model_inside_a_multimodal_one(self) -> None:
        text = without(LLAMA, "model_type") | {"model_type": "llama"}
        for name in ("text_config", "llm_config", "language_config"):
            found = kv_object("-t", "1", config={"model_type": "wrapper", name: text, "torch_dtype": "float32"})
            assert (found["kv_bytes"], found["kv_dtype"]) == (128, "fp32")
            assert found["fields"]["num_key_value_heads"]["origin"] == f"explicit, in {name}"

    def test_23_experts_vocabulary_and_feed_forward_do_not_matter(self) -> None:
        more = {"num_local_experts": 64, "vocab_size": 999, "tie_word_embeddings": True, "intermediate_size": 7}
        assert kv_bytes({**LLAMA, **more, "rope_scaling": {"factor": 8.0, "rope_type": "yarn"}}, 1) == 64

    def test_24_multi_token_prediction_is_not_counted_and_said_to_be_extra(self) -> None:
        assert kv_object("deepseek-v3")["notes"] == [
            "multi-token-prediction layers (num_nextn_predict_layers) keep a cache of their own, not counted"
        ]


class TestQuantities:
    def test_14_gib_is_not_gb(self) -> None:
        binary, decimal = kv_size("llama-3.1-8b").text, kv_size("llama-3.1-8b", "--si").text
        assert "16.00 GiB" in binary
        assert "17.18 GB" in decimal
        assert "17,179,869,184" in binary
        assert "17,179,869,184" in decimal

    def test_15_128k_is_131072_and_is_echoed(self) -> None:
        assert kv_object("llama-3.1-8b", "-t", "128k")["tokens"] == 131072
        assert "131,072" in kv_size("llama-3.1-8b", "-t", "128k").text
        assert kv_object("llama-3.1-8b", "-t", "16000")["kv_bytes"] == 2097152000

    def test_16_the_first_405b_file_had_twice_the_heads(self) -> None:
        assert kv_object("llama-3.1-405b", "-t", "128000")["kv_bytes"] == 66060288000
        assert kv_object("llama-3.1-405b", "-t", "128000", "--kv-heads", "16")["kv_bytes"] == 132120576000

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [
            ("fp32", 4096), ("fp16", 2048), ("bf16", 2048), ("fp8", 1024), ("q8_0", 1088), ("q5_1", 768), ("q5_0", 704),
            ("q4_1", 640), ("q4_0", 576), ("iq4_nl", 576), ("int8", 1088), ("int4", 576), ("int8_per_token_head", 1056),
            ("fp8_per_token_head", 1056), ("nvfp4", 576),
        ],
    )  # fmt: skip
    def test_17_scales_are_counted(self, dtype: str, expected: int) -> None:
        """One token of one layer with 4 key/value heads of 128: 1024 elements, and 8 vectors of 128."""
        found = kv_object("--layers", "1", "--kv-heads", "4", "--head-dim", "128", "-t", "1", "--kv-dtype", dtype)
        assert found["kv_bytes"] == expected

    def test_17_group_size_of_int8_and_int4(self) -> None:
        bare = ("--layers", "1", "--kv-heads", "4", "--head-dim", "128", "-t", "1", "--kv-group-size", "64")
        assert kv_object(*bare, "--kv-dtype", "int4")["kv_bytes"] == 512 + 8 * 2 * 2
        assert "--kv-group-size" in refusal(*bare, "--kv-dtype", "q4_0")

    def test_17_keys_and_values_apart(self) -> None:
        bare = ("--layers", "1", "--kv-heads", "4", "--head-dim", "128", "-t", "1")
        found = kv_object(*bare, "--kv-dtype-k", "q8_0", "--kv-dtype-v", "q4_0")
        assert (found["kv_bytes"], found["kv_dtype"]) == (544 + 288, "q8_0/q4_0")

    def test_18_the_dtype_of_weights_is_not_the_dtype_of_the_cache(self) -> None:
        for method in ("fp8", "awq", "a method nobody knows"):
            config = {**LLAMA, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": method}}
            assert kv_object("-t", "1", config=config)["kv_dtype"] == "bf16"
        assert kv_object("-t", "1", config={**LLAMA, "torch_dtype": "float8_e4m3fn"})["kv_dtype"] == "fp16"
        assert kv_object("-t", "1", config=LLAMA)["kv_dtype"] == "fp16"

    def test_18_fp8_ds_mla_is_for_deepseek_alone(self) -> None:
        assert "656" not in refusal("llama-3.1-8b", "--kv-dtype", "fp8_ds_mla")
        assert kv_object("deepseek-v3", "-t", "1", "--kv-dtype", "fp8_ds_mla")["kv_bytes"] == 61 * 656


class TestRequests:
    def test_19_window_cells_grow_with_the_sequences_of_llama_cpp(self) -> None:
        """Gemma 4 12B at 4096 tokens: 40 window layers of 8 x 256 take most of the cache at 4 slots."""
        config = {
            "model_type": "gemma4_text", "num_hidden_layers": 48, "num_attention_heads": 16, "hidden_size": 3840,
            "num_key_value_heads": 8, "head_dim": 256, "max_position_embeddings": 262144, "sliding_window": 1024,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8, "global_head_dim": 512,
            "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
        }  # fmt: skip
        one, four = (
            kv_object("-t", "16384", "--engine", "llama.cpp", "--slots", slots, "--kv-dtype", "fp16", config=config)
            for slots in ("1", "4")
        )
        cells = {slots: found["layers"][0]["positions"] for slots, found in (("1", one), ("4", four))}
        assert cells == {"1": 1536, "4": 4608}
        assert four["layers"][1]["positions"] == 16384

    def test_19_a_batch_without_slots_is_a_context_for_each(self) -> None:
        found = kv_object("gemma-3-1b", "-t", "4096", "-b", "3", "--engine", "llama.cpp")
        shared = kv_object("gemma-3-1b", "-t", "12288", "--engine", "llama.cpp", "--slots", "3")
        assert found["kv_bytes"] == shared["kv_bytes"]
        assert "--slots" in refusal("gemma-3-1b", "-b", "3", "--engine", "llama.cpp", "--slots", "2")

    def test_20_learned_positions_end_and_rotary_ones_warn(self) -> None:
        assert refusal("gpt2", "-t", "1025") == (
            "--tokens is 1,025; gpt2 has 1,024 learned positions and none beyond; allowed: up to 1,024"
        )
        found = kv_size("phi-2", "-t", "4096", "--json")
        assert found.status == 0
        assert found.stderr == "genx: warning: 4,096 tokens are beyond the 2,048 that phi-2 was made for\n"

    def test_21_beyond_the_kv_heads_the_cache_is_replicated_and_says_so(self) -> None:
        per_gpu = [kv_object("llama-3.1-8b", "-t", "1", "--tp", tp)["kv_bytes"] for tp in ("1", "2", "8", "16")]
        assert per_gpu == [131072, 65536, 16384, 16384]
        assert kv_size("llama-3.1-8b", "--tp", "16").stderr == (
            "genx: warning: --tp 16 is more than the key/value heads of llama-3.1-8b: "
            "GPUs keep copies of the same cache\n"
        )

    def test_21_heads_that_do_not_divide_are_rounded_up(self) -> None:
        assert kv_object("smollm2-135m", "-t", "1", "--tp", "2")["kv_bytes"] == 30 * 2 * 2 * 64 * 2

    def test_21_a_pipeline_counts_its_fullest_stage(self) -> None:
        assert kv_object("llama-3.1-8b", "-t", "1", "--pp", "4")["kv_bytes"] == 8 * 4096
        assert kv_object("llama-3.1-8b", "-t", "1", "--pp", "3")["kv_bytes"] == 11 * 4096
        assert "--pp" in refusal("llama-3.1-8b", "--pp", "33")

    def test_24_sequences_multiply(self) -> None:
        once, thrice = (kv_object("llama-3.1-8b", "-t", "100", "-b", n)["kv_bytes"] for n in ("1", "3"))
        assert thrice == 3 * once

    def test_bytes_per_token_are_of_one_more_token_at_this_length(self) -> None:
        """aiconfigurator: the bytes at one token are no constant rate."""
        rates = [found["bytes_per_token"] for found in kv_objects("gemma-3-1b", "-t", "1,511,512,100k")]
        assert rates == [26 * 1024, 26 * 1024, 4 * 1024, 4 * 1024]
