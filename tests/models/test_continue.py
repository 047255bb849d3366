"""The loop that starts from a cache: the same text as from the whole prompt, and only what follows is read."""

import pytest
import torch

from genx.core.base_model import BaseModel
from genx.core.generation import Prefilled, Sampled
from genx.core.loop import read_columns, result_of
from genx.errors import ArgumentError
from tests.architectures import CONTEXT, prompt

SEEN = 9


@torch.no_grad()
def test_a_cache_of_the_first_columns_changes_nothing_but_what_is_read(model: BaseModel) -> None:
    x = prompt(2, 13)
    _, cache = result_of(read_columns(model, x[:, :SEEN], None, None, True, CONTEXT))
    events = list(model.generate_steps(x, 40, do_sample=False, cache=cache))  # past the context too
    assert events[0] == Prefilled(4, 4)
    new = torch.cat([event.token_ids for event in events if isinstance(event, Sampled)], dim=1)
    assert torch.equal(new, model.generate(x, 40, do_sample=False)[:, 13:])


@torch.no_grad()
def test_a_cache_that_nothing_follows_is_refused(model: BaseModel) -> None:
    x = prompt(1, SEEN)
    _, cache = result_of(read_columns(model, x, None, None, True, CONTEXT))
    with pytest.raises(ArgumentError, match="the cache holds 9 tokens and the prompt 9; allowed: a prompt that goes"):
        model.generate_steps(x, 4, do_sample=False, cache=cache)
    with pytest.raises(ArgumentError, match="a cache is given and use_cache is false; allowed: one of them"):
        model.generate_steps(prompt(1, 12), 4, do_sample=False, use_cache=False, cache=cache)
