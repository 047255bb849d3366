"""Two processes that compute a model together give what one gives, for every architecture."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import genx
from genx.core.division import Inputs, Outputs, Slice, Units
from genx.errors import ArgumentError
from genx.models.llama import Llama
from genx.models.phi3 import Phi3
from genx.parallel.divide import check_divisible, shares_of
from tests.architectures import RECIPES, assert_near, make_tiny
from tests.parallel import one_of_several

PROCESSES = 2
TIMEOUT_S = 200  # for a process that hangs; all of them are through in some seconds
# Three heads cannot be divided by two.
CHANGES: dict[str, dict[str, Any]] = {"gpt": {"n_head": 6}, "gpt2": {"n_head": 6}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every architecture's tiny model, computed by two processes, with their results beside it."""
    parent = tmp_path_factory.mktemp("parallel")
    made = {name: make_tiny(name, parent, **CHANGES.get(name, {})).folder for name in RECIPES}
    command = [sys.executable, "-m", one_of_several.__name__]
    asked = [str(PROCESSES), str(parent / "store"), *map(str, made.values())]
    started = [
        subprocess.Popen([*command, str(rank), *asked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert [process.returncode for process in started] == [0] * PROCESSES, "\n".join(said)
    return made


@pytest.fixture(scope="module", params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def both(name: str, folders: dict[str, Path]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What several processes and one give."""
    folder = folders[name]
    one = one_of_several.results(genx.load_model(folder, dtype=torch.float32))
    return torch.load(folder / one_of_several.RESULTS), one


def test_several_processes_give_what_one_gives(both: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    several, one = both
    for name in ("logits", "cached", "masked"):
        assert_near(several[name], one[name])
    for name in ("greedy", "drawn"):
        assert several[name].tolist() == one[name].tolist()


def test_a_process_holds_its_part(both: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    """Half, but for norms, learned positions, routers and key/value heads that both need."""
    several, one = both
    assert several["parameter bytes"] <= 0.56 * one["parameter bytes"]


def test_a_cache_holds_the_heads_of_its_process(both: tuple[dict[str, Tensor], dict[str, Tensor]], name: str) -> None:
    several, one = both
    shared_head = RECIPES[name].sizes.get("num_key_value_heads") == 1
    assert several["cache bytes"] * (1 if shared_head else PROCESSES) == one["cache bytes"]


def sizes(**changes: int) -> dict[str, Any]:
    return {"vocab_size": 5, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 6} | {
        "num_key_value_heads": 2,
        "intermediate_size": 18,
        "max_position_embeddings": 8,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "processes", "message"),
    [
        (
            {},
            4,
            "tensor_parallel is 4, and the model's num_attention_heads of 6 cannot be divided so; allowed: 1, 2, 6",
        ),
        (
            {},
            3,
            "tensor_parallel is 3, and the model's num_key_value_heads of 2 cannot be divided so; allowed: 1, 2, 6",
        ),
        (
            {"intermediate_size": 17},
            2,
            "tensor_parallel is 2, and the model's intermediate_size of 17 cannot be divided so; allowed: 1",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(changes: dict[str, int], processes: int, message: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        check_divisible(Llama(sizes(**changes)), processes)
    assert str(refused.value) == message


def test_fused_heads_are_not_repeated() -> None:
    model = Phi3(sizes())
    check_divisible(model, 2)
    with pytest.raises(ArgumentError, match="num_key_value_heads of 2"):
        check_divisible(model, 6)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 6, 12])
def test_each_query_head_finds_its_key_head(processes: int) -> None:
    """Of 12 query heads and 4 key/value heads, in every process, those that belong together."""
    queries, keys = Units("H", 12, 5), Units("G", 4, 5, repeats=True)
    if not (queries.allows(processes) and keys.allows(processes)):
        assert processes in (3, 6)
        return
    for rank in range(processes):
        first, count = (length // 5 for length in queries.run_of(rank, processes))
        first_key, key_count = (length // 5 for length in keys.run_of(rank, processes))
        wanted = [head // 3 for head in range(first, first + count)]
        assert wanted == [first_key + own * key_count // count for own in range(count)]


def test_every_matrix_is_divided(name: str, folders: dict[str, Path]) -> None:
    """A new architecture whose blocks do not say how they are divided is noticed here."""
    model = genx.load_model(folders[name])
    shares = shares_of(model)
    undivided = [
        parameter_name
        for parameter_name, parameter in model.named_parameters()
        if parameter.dim() > 1
        and not {parameter_name, parameter_name.rpartition(".")[0]} & shares.keys()
        and parameter_name.split(".")[-2] not in ("gate", "router", "wpe", "positions_embed")
    ]
    assert undivided == []
    assert any(isinstance(share, Outputs | Slice) for share in shares.values())
    assert any(isinstance(share, Inputs | Slice) for share in shares.values())
