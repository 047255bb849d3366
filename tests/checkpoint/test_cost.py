"""What loading costs: no torch before it is needed, no second copy of the weights."""

import subprocess
import sys
from pathlib import Path

import pytest

from genx.checkpoint.safetensors_writer import TensorSource, write_safetensors
from tests.fixtures.folders import tiny_config, write_config

MIB = 1 << 20
WIDTH, VOCABULARY = 4096, 12_000  # two matrices of 187.5 MiB in float32


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_torch_free_parts_import_no_torch(tmp_path: Path) -> None:
    write_config(tmp_path, {"vocab_size": 10, "eos_token_id": 3})
    code = (
        "import sys, genx.checkpoint as c\n"
        "folder = c.resolve_model(sys.argv[1])\n"
        "print(c.read_config_json(folder)['vocab_size'], c.read_generation_defaults(folder).eos_token_ids)\n"
        "print('torch' in sys.modules)\n"
    )
    assert run_python(code, str(tmp_path)) == "10 (3,)\nFalse\n"


MEASURE = """
import re, sys, warnings
from pathlib import Path
import torch
from genx.checkpoint import load_model
import genx.checkpoint.loading, genx.models.llama

def anonymous_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before = anonymous_mib()
model = load_model(sys.argv[1], dtype=sys.argv[2])
total = sum(float(parameter.sum()) for parameter in model.parameters())  # touches every page
mapped = [
    tuple(int(edge, 16) for edge in line.split()[0].split("-"))
    for line in Path("/proc/self/maps").read_text().splitlines()
    if line.endswith("model.safetensors")
]
inside = [any(low <= p.data_ptr() < high for low, high in mapped) for p in model.parameters()]
print(all(inside), any(inside), total, "torch._dynamo" in sys.modules, anonymous_mib() - before)
"""


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer whose head and embedding take 187.5 MiB each in float32; all weights are 0 in the file."""
    sizes = {"hidden_size": WIDTH, "vocab_size": VOCABULARY, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    config = tiny_config(**sizes, **heads)
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "model.layers.0.input_layernorm.weight": (WIDTH,),
        "model.layers.0.post_attention_layernorm.weight": (WIDTH,),
        "model.layers.0.self_attn.q_proj.weight": (8, WIDTH),
        "model.layers.0.self_attn.k_proj.weight": (8, WIDTH),
        "model.layers.0.self_attn.v_proj.weight": (8, WIDTH),
        "model.layers.0.self_attn.o_proj.weight": (WIDTH, 8),
        "model.layers.0.mlp.gate_proj.weight": (8, WIDTH),
        "model.layers.0.mlp.up_proj.weight": (8, WIDTH),
        "model.layers.0.mlp.down_proj.weight": (WIDTH, 8),
    }

    def zeros(count: int) -> list[bytes]:
        return [bytes(MIB)] * (count // MIB) + [bytes(count % MIB)]

    sources = {}
    for name, shape in shapes.items():
        source = TensorSource("F32", shape, list)
        sources[name] = TensorSource("F32", shape, lambda count=source.nbytes: zeros(count))
    folder = write_config(tmp_path_factory.mktemp("large"), config)
    write_safetensors(folder / "model.safetensors", sources, {"format": "pt"})
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_that_fit_stay_in_the_mapped_file(large_folder: Path) -> None:
    all_mapped, _, total, dynamo, growth = run_python(MEASURE, str(large_folder), "float32").split()
    assert (all_mapped, total, dynamo) == ("True", "0.0", "False")
    assert float(growth) < 60  # the model's own objects and torch's workspace, of 375 MiB of weights


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_that_are_converted_exist_once(large_folder: Path) -> None:
    _, any_mapped, total, _, growth = run_python(MEASURE, str(large_folder), "bfloat16").split()
    assert (any_mapped, total) == ("False", "0.0")
    assert 180 < float(growth) < 180 + 75  # 188 MiB of bfloat16, and no float32 copy of any matrix
