"""genx run on SmolLM2-135M-Instruct, as scripts/fetch_smollm2 lays it out."""

import json
from pathlib import Path
from typing import Any

import pytest

from genx.checkpoint import resolve_model
from genx.errors import GenxError
from tests.cli.in_process import run_genx, run_genx_at_terminal

# The group keeps the model in one process when tests run in several.
pytestmark = [pytest.mark.real_model, pytest.mark.xdist_group("real_model")]

PROMPTS = (
    "Write a short story about a fox.",
    "Why is the sky blue? Answer in one sentence.",
    "Schreibe drei Wörter auf Deutsch: 🦊",
)


@pytest.fixture(scope="module")
def model() -> str:
    try:
        return str(resolve_model("smollm2-135m"))
    except GenxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def reference(model: str) -> dict[str, str]:
    """What transformers' greedy decoding in float32 answers to each prompt, 32 tokens at most."""
    transformers: Any = pytest.importorskip("transformers")
    import torch

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    texts = {}
    for prompt in PROMPTS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        new = network.generate(ids, max_new_tokens=32, do_sample=False)[0, ids.size(1) :]
        texts[prompt] = tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return texts


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_transformers(model: str, reference: dict[str, str], prompt: str) -> None:
    result = run_genx("run", prompt, "-n", "32", "-m", model)
    assert (result.status, result.text, result.stderr) == (0, reference[prompt], "")


def test_in_a_terminal_of_60_columns(model: str, reference: dict[str, str]) -> None:
    result = run_genx_at_terminal("run", PROMPTS[0], "-n", "32", "-m", model, columns=60)
    assert result.stdout.decode() == reference[PROMPTS[0]] + "\n"
    for word in ("loading", "reading the prompt", "finished", "tokens/s", "MiB"):
        assert word in result.stderr


def test_the_models_own_end(model: str) -> None:
    found = json.loads(run_genx("run", "Say only: yes", "--json", "-m", model, "-n", "200").text)
    assert found["finish_reason"] == "eos"
    assert found["ids"][-1] == 2  # <|im_end|>


def test_the_name_is_found_in_the_models_folder(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENX_MODELS", str(Path(model).parent))
    monkeypatch.setenv("GENX_MODEL", Path(model).name)
    assert run_genx("run", "2 + 2 =", "--raw", "-n", "2").status == 0
