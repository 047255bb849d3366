"""The published models that come with genx: each has a source, reads, and is what others measured."""

import json
from pathlib import Path

import pytest

import genx
from genx.kv_size import presets
from tests.kv_size.command import kv_object, kv_size, refusal

NAMES = presets.preset_names()

# Families that a planner looks for first.
EXPECTED = {
    "openai-gpt", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-7b", "llama-13b", "llama-30b", "llama-65b",
    "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "llama-3.1-8b", "llama-3.1-70b",
    "llama-3.1-405b", "llama-3.2-1b", "llama-3.2-3b", "llama-3.3-70b", "mistral-7b", "mistral-7b-v0.2",
    "mistral-7b-v0.3", "mistral-nemo-12b", "mixtral-8x7b", "mixtral-8x22b", "gemma-2b", "gemma-7b", "gemma-2-2b",
    "gemma-2-9b", "gemma-2-27b", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "qwen2.5-0.5b",
    "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b", "qwen3-0.6b",
    "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "qwen3.5-27b", "phi-1.5", "phi-2", "phi-3-mini-4k", "phi-3-mini-128k", "phi-3.5-mini", "phi-4", "phi-4-mini",
    "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3", "smollm2-135m", "smollm2-360m", "smollm2-1.7b",
}  # fmt: skip


def test_the_expected_models_are_there() -> None:
    assert set(NAMES) >= EXPECTED
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_a_source_and_every_field_is_explicit(name: str) -> None:
    found = kv_object(name)
    path = presets.find_preset(name)
    assert path is not None
    sources = json.loads(path.read_text(encoding="utf-8"))[presets.SOURCE_KEY]
    assert all(isinstance(source, str) and ": " in source for source in sources)
    assert sources
    origins = {field: value["origin"] for field, value in found["fields"].items()}
    assumed = {field for field, origin in origins.items() if "defaults" in origin}
    assert assumed <= {"sliding_window_pattern", "multi_query"}, origins  # Gemma 2's and Falcon's files leave them out
    assert found["positions"] is not None


@pytest.mark.parametrize(
    ("name", "tokens", "dtype", "expected"),
    [
        ("llama-2-7b", "4096", "fp16", 2048 << 20),
        ("llama-3.1-8b", "131072", "bf16", 16 << 30),
        ("llama-3-70b", "2048", "fp16", 640 << 20),
        ("command-r", "2048", "fp16", 2560 << 20),
        ("qwen3-4b", "8192", "fp16", 1152 << 20),
        ("gemma-3-1b", "32768", "bf16", 139 << 20),
        ("gemma-3-27b", "131072", "bf16", 11173625856),
        ("deepseek-v3", "163840", "bf16", 11513364480),
        ("qwen2.5-32b", "32768", "q8_0", 4352 << 20),
        ("phi-3-mini-128k", "131328", "fp16", 49248 << 20),
        ("qwen3.5-27b", "262144", "bf16", 16 << 30),
    ],
)
def test_the_acceptance_models(name: str, tokens: str, dtype: str, expected: int) -> None:
    assert kv_object(name, "-t", tokens, "--kv-dtype", dtype)["kv_bytes"] == expected


def test_gpt_oss_20b_as_vllm_reserves_it() -> None:
    """vLLM's own rule, 32 requests of 8192 tokens: hf-mem PR #61 measured 6.09 GiB as the floor."""
    assert kv_object("gpt-oss-20b", "-t", "8192", "-b", "32", "--kv-dtype", "bf16")["kv_bytes"] == 6543114240


def test_names_are_found_in_any_case_and_slips_are_answered() -> None:
    assert kv_object("Mistral-7B")["model"] == "mistral-7b"
    text = refusal("mistral-8b")
    assert "did you mean mistral-7b" in text
    assert "--list" in text


def test_list() -> None:
    lines = kv_size("--list").text.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    listed = json.loads(kv_size("--list", "--json").text)
    assert [preset["name"] for preset in listed] == NAMES
    assert all(preset["source"] for preset in listed)


def test_presets_are_found_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "genx"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "only.json").write_text("[]")
    monkeypatch.setattr(genx, "__file__", str(package / "__init__.py"))
    assert presets.preset_names() == ["only"]
    assert "no JSON object" in refusal("only")


def test_the_folder_is_shipped_under_its_name_in_the_wheel() -> None:
    root = Path(genx.__file__).parents[1]
    assert presets.presets_folder() == root / "configs"
    assert '"configs" = "genx/configs"' in (root / "pyproject.toml").read_text(encoding="utf-8")
