"""Contracts of the specification that concern the loop and the cache: its example, its counts, its sizes."""

import pytest
import torch

from genx.core.base_model import BaseModel
from genx.core.cache import cache_nbytes
from genx.models.gemma import Gemma
from genx.models.gpt import GPT
from genx.models.llama import Llama
from genx.models.mistral import Mistral

EXAMPLE = {
    "vocab_size": 50,
    "embed_dim": 32,
    "num_heads": 4,
    "num_layers": 2,
    "max_position_embeddings": 16,
    "dropout": 0.0,
}


def test_the_code_example() -> None:
    torch.manual_seed(0)
    model = GPT(EXAMPLE).eval()
    x = torch.randint(0, 50, (2, 10))
    out = model.generate(x, max_new_tokens=20, do_sample=False)
    assert out.shape == torch.Size([2, 30])
    assert torch.equal(out, model.generate(x, max_new_tokens=20, do_sample=False, use_cache=False))
    torch.manual_seed(42)
    for arguments in ({"temperature": 0.8}, {"top_k": 10}):
        assert model.generate(x, max_new_tokens=20, do_sample=True, **arguments).shape == (2, 30)
    ended = model.generate(x, max_new_tokens=20, do_sample=True, top_p=0.9, eos_token_id=3, pad_token_id=0)
    assert ended.shape[1] <= 30
    with pytest.raises(ValueError, match="both given"):
        model.generate(x, 5, do_sample=True, top_k=5, top_p=0.9)
    with pytest.raises(ValueError, match="temperature"):
        model.generate(x, 5, do_sample=True, temperature=0)
    assert model.generate(x, 5, do_sample=False, temperature=0).shape == (2, 15)


SEVEN_B = {"num_layers": 32, "num_heads": 32, "head_size": 128}


class CountingGPT(GPT):
    """Counts the tokens that pass through forward, without computing them."""

    passes = 0

    def forward(self, x, cache=None, use_cache=False, attention_mask=None, *, logits_to_keep=None):  # type: ignore[no-untyped-def]
        self.passes += x.numel()
        step, entries = self.begin(x, cache, use_cache, attention_mask)
        heads = torch.zeros(x.size(0), 1, x.size(1), 1)
        following = [entry.attended(heads, heads, step)[3] for entry in entries] if use_cache else None
        return torch.zeros(x.size(0), logits_to_keep or 0, self.config.vocab_size), following


@pytest.mark.parametrize(
    ("prompt", "new", "context", "cached", "uncached"),
    [(100, 100, 1024, 199, 14_950), (500, 500, 1024, 999, 374_750), (500, 500, 512, 249_856, 255_922)],
)
def test_token_passes(prompt: int, new: int, context: int, cached: int, uncached: int) -> None:
    """The section on complexity, and exercise 4."""
    for use_cache, expected in ((True, cached), (False, uncached)):
        model = CountingGPT({**EXAMPLE, "max_position_embeddings": context}).eval()
        model.generate(torch.zeros(1, prompt, dtype=torch.long), new, do_sample=False, use_cache=use_cache)
        assert model.passes == expected


@pytest.mark.parametrize(
    ("architecture", "sizes", "batch", "mebibytes"),
    [
        (
            Mistral,
            {"num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "head_size": 128, "window_size": 4096},
            1,
            512,
        ),
        (Gemma, {"num_layers": 18, "num_heads": 8, "num_kv_heads": 1, "head_size": 256}, 1, 72),
        (Llama, SEVEN_B, 1, 2048),
        (Llama, SEVEN_B, 8, 16_384),
    ],
)
def test_cache_sizes(architecture: type[BaseModel], sizes: dict[str, int], batch: int, mebibytes: int) -> None:
    """4,096 positions in float16, allocated by the cache itself; only the projections are made small."""
    rest = {"vocab_size": 2, "embed_dim": 32, "intermediate_size": 1, "max_position_embeddings": 4096}
    with torch.device("meta"):  # the bytes are counted, not touched
        model = architecture({**sizes, **rest}).half()
        x = torch.zeros(batch, 4096, dtype=torch.long)
        _, cache = model(x, use_cache=True, logits_to_keep=0)
    assert cache_nbytes(cache) == mebibytes << 20


def test_exercise_6_a_shifted_cache_is_not_the_window() -> None:
    """Dropping the oldest key and going on gives other logits than the window, which generate re-reads."""
    torch.manual_seed(0)
    model = Llama({**EXAMPLE, "num_layers": 3}).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    x = torch.randint(0, 50, (1, 17))
    with torch.no_grad():
        _, cache = model(x[:, :16], use_cache=True)
        shifted = [(keys[:, :, 1:], values[:, :, 1:]) for keys, values in (entry._storage.first(16) for entry in cache)]
        window, _ = model(x[:, -16:])
        went_on, _ = model(x[:, -1:], shifted)
    assert float((window[:, -1] - went_on[:, -1]).abs().max()) > 0.1 * float(window.abs().max())
