"""What a long text costs: the cache as predicted, chunks for the prompt, no growth per token."""

import subprocess
import sys

import pytest
import torch

from genx.cache_rules import allocated_positions
from genx.core.cache import cache_nbytes
from genx.core.generation import Sampled
from genx.core.growing import GrowingColumns
from genx.models.llama import Llama
from genx.models.mistral import Mistral

SIZES = {"vocab_size": 32, "embed_dim": 8, "num_heads": 2, "num_layers": 2, "max_position_embeddings": 1 << 16}
BYTES_PER_POSITION = 2 * 2 * 8 * 4  # K and V, two layers, 2 heads of 4, float32


@pytest.mark.parametrize(
    ("needed", "at_most", "window", "expected"),
    [
        (1, 4096, None, 4096),
        (1, 4097, None, 1024),
        (1024, 8192, None, 1024),
        (1025, 8192, None, 2048),
        (8000, 8100, None, 8100),
        (1, 10_000, 4096, 4096),
        (1, 300, 4096, 300),
        (3000, 10_000, 5000, 3072),
        (9000, 10_000, 5000, 5000),
    ],
)
def test_allocated_positions(needed: int, at_most: int, window: int | None, expected: int) -> None:
    assert allocated_positions(needed, at_most, window) == expected


@pytest.mark.parametrize(
    ("prompt", "new", "expected"), [(10, 5, [15] * 5), (1023, 4000, [1024] * 2 + [2048] * 3), (4000, 96, [4096] * 5)]
)
def test_the_cache_allocates_as_the_rule_says(prompt: int, new: int, expected: list[int]) -> None:
    torch.manual_seed(0)
    model = Llama(SIZES).eval()
    x = torch.zeros(1, prompt, dtype=torch.long)
    sampled = (event for event in model.generate_steps(x, new, False) if isinstance(event, Sampled))
    found = [event.cache_bytes for event, _ in zip(sampled, range(5), strict=False)]
    assert found == [positions * BYTES_PER_POSITION for positions in expected]


@torch.no_grad()
def test_growth_keeps_what_was_there() -> None:
    torch.manual_seed(0)
    for model in (Llama(SIZES).eval(), Mistral({**SIZES, "window_size": 4500}).eval()):
        x = torch.randint(0, 32, (1, 4700))
        expected, _ = model(x, logits_to_keep=20)
        cache, at = model.new_cache(5000), 0
        for size in (1000, 200, 2800, 680, *[1] * 20):
            logits, cache = model(x[:, at : at + size], cache, use_cache=True, logits_to_keep=1)
            at += size
            if at > 4680:
                torch.testing.assert_close(logits[0, 0], expected[0, at - 4681], rtol=1e-4, atol=1e-5)
        assert cache_nbytes(cache) == sum(min(w or 5000, 5000) for w in model.layer_windows) * BYTES_PER_POSITION // 2


def test_growing_columns() -> None:
    columns = GrowingColumns(torch.arange(4).reshape(2, 2), 5000)
    rooms = set()
    for value in range(2, 5000):
        columns.append(torch.tensor([[value], [-value]]))
        rooms.add(columns._room.data_ptr())
    assert columns.columns[0].tolist() == [0, 1, *range(2, 5000)]
    assert columns.columns[1].tolist() == [2, 3, *range(-2, -5000, -1)]
    assert len(rooms) <= 5


PEAK = """
import torch
from genx.engine.memory import peak_memory_bytes
from genx.models.llama import Llama
torch.set_num_threads(1)
model = Llama({"vocab_size": 20000, "embed_dim": 16, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1,
               "max_position_embeddings": 65536}).eval()
x = torch.zeros(1, 32768, dtype=torch.long)
model.generate(x[:, :600], 2, do_sample=False)
before = peak_memory_bytes("cpu")
model.generate(x, 2, do_sample=False)
print(peak_memory_bytes("cpu") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others count what the parent held too")
def test_a_long_prompt_needs_no_square_of_itself() -> None:
    """T = 32,768: a mask of T x T would be 1 GiB as bool, logits of T x V 2.4 GiB."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    cache = 2 * 8 * 4 * (32_768 + 1024)
    mask = 512 * 32_768 * (1 + 4)  # of one chunk, as bool and as the float32 that attention makes of it
    assert 0 < int(done.stdout) <= 1.5 * (cache + mask)
