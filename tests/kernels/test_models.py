"""Attached models equal the torch path, for every architecture: logits, caches, windows, masks, greedy text."""

import copy

import pytest
import torch

from genx.core.base_model import BaseModel
from genx.core.cache import join_rows
from genx.core.conv1d import Conv1D
from genx.kernels import attach
from genx.kernels.library import Library, native_library
from genx.kernels.linear import KernelLinear
from tests.architectures import CONTEXT, Tiny, assert_near, prompt

needs_native = pytest.mark.skipif(not isinstance(native_library(), Library), reason="no compiled operations")
pytestmark = needs_native


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16])
def pair(request: pytest.FixtureRequest, tiny: Tiny) -> tuple[BaseModel, BaseModel]:
    """A model of the core alone and one with kernels: the same weights, stored in 32 or 16 bits."""
    stored = tiny.model().to(request.param)
    attached = copy.deepcopy(stored)
    attach(attached, "stored", "native")
    return stored.float(), attached


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 5, CONTEXT])
def test_logits_equal_the_core(pair: tuple[BaseModel, BaseModel], chunk: int) -> None:
    core, attached = pair
    x = prompt(2, CONTEXT)
    cache, parts = None, []
    for columns in x.split(chunk, dim=1):
        logits, cache = attached(columns, cache, use_cache=True)
        parts.append(logits)
    assert_near(torch.cat(parts, dim=1), core(x)[0])


@pytest.mark.parametrize(("length", "use_cache"), [(13, True), (13, False), (CONTEXT + 5, True)])
def test_greedy_text_equals_the_core(pair: tuple[BaseModel, BaseModel], length: int, use_cache: bool) -> None:
    core, attached = pair
    x, steps = prompt(2, length), max(CONTEXT + 6 - length, 4)
    expected = core.generate(x, steps, do_sample=False)
    assert torch.equal(attached.generate(x, steps, do_sample=False, use_cache=use_cache), expected)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 8])
def test_masked_rows_equal_the_core(pair: tuple[BaseModel, BaseModel], chunk: int) -> None:
    core, attached = pair
    x = prompt(3, CONTEXT)
    mask = torch.ones(3, CONTEXT, dtype=torch.bool)
    mask[0, :9] = mask[1, 4:30:3] = mask[2, 20:31] = False
    cache, parts = None, []
    for start in range(0, CONTEXT, chunk):
        end = min(start + chunk, CONTEXT)
        logits, cache = attached(x[:, start:end], cache, use_cache=True, attention_mask=mask[:, :end])
        parts.append(logits)
    assert_near(torch.cat(parts, dim=1)[mask], core(x, attention_mask=mask)[0][mask])


@torch.no_grad()
def test_rows_that_were_read_apart_equal_the_core(pair: tuple[BaseModel, BaseModel]) -> None:
    core, attached = pair
    x = prompt(3, 20)
    caches = [attached(x[row : row + 1, : 5 + 6 * row], use_cache=True)[1] for row in range(3)]
    joined = join_rows(caches)
    for more in range(3):
        columns = torch.stack([x[row, 5 + 6 * row + more] for row in range(3)]).unsqueeze(0)
        logits, joined = attached(columns, joined, use_cache=True)
    for row in range(3):
        assert_near(logits[:, row], core(x[row : row + 1, : 8 + 6 * row])[0][:, -1])


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_models_equal_the_core_with_dequantised_weights(tiny: Tiny, weights: str) -> None:
    core, attached = tiny.model(), tiny.model()
    attach(attached, weights, "native")
    with torch.no_grad():
        for name, module in attached.named_modules():
            if isinstance(module, KernelLinear):
                dense = module.expanded(0, module.out_features)
                input_first = isinstance(core.get_submodule(name), Conv1D)
                # A parameter of its own, for the token embedding is not quantised where the head is.
                core.get_submodule(name).weight = torch.nn.Parameter(dense.t() if input_first else dense)
        x = prompt(2, CONTEXT)
        assert_near(attached(x)[0], core(x)[0])
        cache, parts = None, []
        for columns in x.split(3, dim=1):
            logits, cache = attached(columns, cache, use_cache=True)
            parts.append(logits)
        assert_near(torch.cat(parts, dim=1), core(x)[0])
    assert torch.equal(attached.generate(x[:, :9], 30, do_sample=False), core.generate(x[:, :9], 30, do_sample=False))
