"""gpt-oss as it is published, with experts in MXFP4: the values, the model, and what is refused."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import genx
from genx.checkpoint import convert_model, open_source
from genx.checkpoint.mxfp4_values import dequantised
from genx.errors import CheckpointError
from genx.messages import printable
from tests.architectures import Tiny, assert_near, prompt
from tests.cli.in_process import run_genx
from tests.fixtures.folders import assert_same_weights, tiny_config, tiny_tensors, write_folder
from tests.fixtures.gguf_files import convert_to_gguf
from tests.fixtures.mxfp4 import make_packed, random_blocks
from tests.kv_size.command import kv_object

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_packed(tmp_path_factory.mktemp("tiny"))


def every_byte_and_scale(scales: range) -> tuple[Tensor, Tensor]:
    """Each row has one of the scales and all 256 bytes."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, len(scales), 1, 1)
    return blocks, torch.tensor(list(scales), dtype=torch.uint8).view(1, -1, 1).repeat(1, 1, 16)


def test_every_value_is_the_specification_s() -> None:
    """Sign, two bits of exponent with a bias of 1, one of mantissa; the lower nibble first; 2 ** (scale - 127)."""

    def value(nibble: int, scale: int) -> float:
        exponent, mantissa = nibble >> 1 & 3, nibble & 1
        magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
        return math.copysign(magnitude, -1 if nibble >> 3 else 1) * 2.0 ** (scale - 127)

    scales = range(252)  # those above go beyond float32
    found = dequantised(*every_byte_and_scale(scales))[0]  # [in, out]
    expected = [[value(byte >> shift & 15, scale) for byte in range(256) for shift in (0, 4)] for scale in scales]
    assert torch.equal(found.double().t(), torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(found.signbit()[:, 0], torch.tensor([nibble >> 3 == 1 for byte in range(256)
                                                            for nibble in (byte & 15, byte >> 4)]))  # fmt: skip
    assert bool(dequantised(*every_byte_and_scale(range(255, 256))).isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_transformers_own(dtype: torch.dtype) -> None:
    for blocks, scales in (every_byte_and_scale(range(255)), random_blocks(3, 7, 160, (0, 255))):
        expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
        assert torch.equal(dequantised(blocks, scales).to(dtype), expected)


@torch.no_grad()
@pytest.mark.parametrize("floats", [(), (1,), (0, 2)])
def test_the_model_is_transformers_own(floats: tuple[int, ...], tmp_path: Path) -> None:
    """Layers that are named as not converted have floats."""
    folder = make_packed(tmp_path, floats).folder
    peer = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model = genx.load_model(folder, dtype="float32")
    assert_near(model(prompt(2, 30))[0], peer(prompt(2, 30)).logits)
    expected = dict(peer.named_parameters())
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())
    found = model.generate(prompt(1, 9), 20, do_sample=False)
    assert found.tolist() == peer.generate(prompt(1, 9), max_new_tokens=20, do_sample=False, pad_token_id=0).tolist()


def test_without_a_dtype_in_the_configuration_it_is_the_other_weights_own(tmp_path: Path) -> None:
    """As the published models have it: bfloat16."""
    folder = make_packed(tmp_path).folder
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": None}))
    assert {parameter.dtype for parameter in genx.load_model(folder).parameters()} == {torch.bfloat16}
    assert open_source(folder).prevailing_dtype() == "bfloat16"


def test_convert_and_save_write_floats(tiny: Tiny, tmp_path: Path) -> None:
    model = genx.load_model(tiny.folder)
    assert run_genx("convert", str(tiny.folder), str(tmp_path / "converted")).status == 0
    model.save(tmp_path / "saved")
    for name in ("converted", "saved"):
        assert "quantization_config" not in json.loads((tmp_path / name / "config.json").read_text())
        assert_same_weights(genx.load_model(tmp_path / name), model)
    assert run_genx("convert", str(tiny.folder), str(tmp_path / "half"), "--dtype", "bfloat16").status == 0
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    expected = dict(genx.load_model(tiny.folder, dtype="bfloat16").named_parameters())
    assert all(torch.equal(parameter, expected[name]) for name, parameter in peer.named_parameters())


def test_a_gguf_file_of_the_same_values_gives_the_same_model(tiny: Tiny, tmp_path: Path) -> None:
    """Blocks there have other nibbles side by side, and gates and inputs apart."""
    folder = convert_model(tiny.folder, tmp_path / "floats")
    file = convert_to_gguf(folder, tmp_path / "tiny.gguf", experts="MXFP4")
    assert sum(tensor.dtype == "MXFP4" for tensor in open_source(file).summarize_tensors().values()) == 9
    assert_same_weights(genx.load_model(file), genx.load_model(tiny.folder))


def test_inspect_and_kv_size_count_values_and_bytes(tiny: Tiny) -> None:
    found = json.loads(run_genx("inspect", str(tiny.folder), "--json").text)
    experts = 3 * 3 * (96 * 64 + 32 * 96)
    whole = sum(parameter.numel() for parameter in genx.load_model(tiny.folder).parameters())
    assert found["parameters"] == whole
    assert found["tensors"] == [
        {"dtype": "F32", "tensors": 54 - 6, "parameters": whole - experts, "bytes": 4 * (whole - experts)},
        {"dtype": "MXFP4", "tensors": 6, "parameters": experts, "bytes": experts // 32 * 17},
    ]
    size = kv_object(str(tiny.folder), "-t", "9", "--memory", "1GiB")["weights_bytes"]
    assert size == 4 * (whole - experts) + experts // 32 * 17


Q = "model.layers.1.mlp.experts.down_proj"
BYTE = torch.zeros(3, 96, 1, 16, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{Q}_scales": None}, f"stores {Q} as _blocks U8 [3, 96, 1, 16], no _scales; expected for mxfp4: _blocks U8"),
        ({f"{Q}_blocks": None}, f"stores {Q} as no _blocks, _scales U8 [3, 96, 1]; expected for mxfp4"),
        ({f"{Q}_blocks": BYTE.float()}, f"stores {Q} as _blocks F32 [3, 96, 1, 16], _scales U8 [3, 96, 1]; expected"),
        ({f"{Q}_scales": BYTE[..., 0].bfloat16()}, f"stores {Q} as _blocks U8 [3, 96, 1, 16], _scales BF16"),
        ({f"{Q}_scales": BYTE[:, :95, :, 0]}, "_scales U8 [3, 95, 1]; expected"),
        ({f"{Q}_blocks": BYTE[..., :15]}, "_blocks U8 [3, 96, 1, 15], _scales"),
        ({f"{Q}_blocks": BYTE[0], f"{Q}_scales": BYTE[0, ..., 0]}, "_blocks U8 [96, 1, 16], _scales U8 [96, 1]; exp"),
        ({f"{Q}_blocks": BYTE[:2], f"{Q}_scales": BYTE[:2, ..., 0]}, f"{Q} [2, 32, 96], expected [3, 32, 96]"),
        ({f"{Q}_blocks": BYTE[:, :0], f"{Q}_scales": BYTE[:, :0, ..., 0]}, "without any value"),
        ({Q: torch.zeros(3, 32, 96)}, f"stores {Q} twice, as mxfp4 and as floats; keep one"),
        ({"x\x1b_blocks": BYTE, "x\x1b_scales": BYTE[..., 0]}, "1 unexpected: x\\x1b [3, 32, 96]"),
        ({"x_scales": torch.tensor(1.0)}, "stores x as no _blocks, _scales F32 []; expected"),
    ],
)
def test_blocks_that_belong_to_no_weight(tiny: Tiny, changes: dict[str, Tensor | None], said: str) -> None:
    folder = tiny.changed(tie_word_embeddings=False, note=said)
    tensors = load_file(tiny.folder / "model.safetensors") | changes
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as refused:
        genx.load_model(folder)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", "mxfp4\x1b", "MXFP4"])
def test_other_methods_are_refused_by_name(tiny: Tiny, method: str) -> None:
    folder = tiny.changed(quantization_config={"quant_method": method, "bits": 4})
    said = f"quantised by {printable(method)}; genx loads floats, its own blocks, and mxfp4 of gpt_oss; get the"
    with pytest.raises(CheckpointError, match=re.escape(said)):
        genx.load_model(folder)
    result = run_genx("convert", str(folder), str(folder / "out"))
    assert (result.status, result.stdout, result.stderr.count("\n")) == (1, b"", 1)
    assert said in result.stderr
    assert run_genx("inspect", str(folder)).status == 0
    assert kv_object(str(folder), "-t", "9")["kv_bytes"] > 0


def test_mxfp4_of_another_architecture_is_refused(tmp_path: Path) -> None:
    config = tiny_config()
    quantised = {**config, "quantization_config": {"quant_method": "mxfp4"}}
    with pytest.raises(
        CheckpointError, match="quantised by mxfp4; genx loads floats, its own blocks, and mxfp4 of gpt_oss"
    ):
        genx.load_model(write_folder(tmp_path, quantised, tiny_tensors(config)))


MEASURE = """
import torch
from genx.checkpoint.mxfp4_values import dequantised
from genx.engine.memory import peak_memory_bytes

blocks, scales = torch.zeros(48, 1024, 32, 16, dtype=torch.uint8), torch.zeros(48, 1024, 32, dtype=torch.uint8)
dequantised(blocks[:1], scales[:1])
before = peak_memory_bytes("cpu")
values = dequantised(blocks, scales)
print(values.nbytes >> 20, (peak_memory_bytes("cpu") - before) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others count what the parent held too")
def test_dequantising_takes_the_result_and_one_expert(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    result, peak = map(int, done.stdout.split())
    assert result == 96
    assert result // 2 < peak < result + 12  # an expert's values are 2 MiB
