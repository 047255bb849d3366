"""What a token needs, counted by hand, and what a machine allows."""

from pathlib import Path

import pytest

from genx.bench.limits import Rates, Work
from genx.bench.machine import measure_rates
from genx.bench.work import work_of
from tests.architectures import RECIPES, make_tiny
from tests.bench.fakes import point

RATES = Rates(threads=1, read_gb_s=10.0, matmul_gflop_s={"float32": 100.0, "bfloat16": 25.0})


def test_one_row_waits_for_memory() -> None:
    work = Work(weight_bytes=10**9, cache_bytes=10**8, decode_flop=10**9, prefill_flop=10**12)
    assert work.decode_limit_tps(RATES, 1, "float32") == pytest.approx(1 / 0.11)
    assert work.decode_limit_tps(RATES, 4, "float32") == pytest.approx(4 / 0.14)


def test_many_rows_wait_for_the_products() -> None:
    work = Work(weight_bytes=10**9, cache_bytes=0, decode_flop=10**9, prefill_flop=10**12)
    assert work.decode_limit_tps(RATES, 100, "float32") == pytest.approx(100.0)
    assert work.prefill_limit_tps(RATES, 1, 500, "float32") == pytest.approx(50.0)
    assert work.prefill_limit_tps(RATES, 2, 500, "bfloat16") == pytest.approx(50.0)  # float32 may do the work


def test_the_work_of_a_llama_by_hand(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path).model()
    hidden, inner, heads, kv_heads, head, vocab, layers = 36, 52, 6, 2, 10, 97, 3
    layer = hidden * head * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    norms = hidden * (2 * layers + 1)
    found = work_of(model, point(prompt=5, new=4, batch=3))
    # three steps of decoding, whose tokens see 6, 7 and 8 keys
    assert found.weight_bytes == 4 * (layers * layer + norms + vocab * hidden)
    assert found.cache_bytes == 7 * layers * 2 * kv_heads * head * 4
    assert found.decode_flop == 2 * (layers * layer + vocab * hidden) + 4 * heads * head * layers * 7
    keys_of_the_prompt = 1 + 2 + 3 + 4 + 5
    assert found.prefill_flop == (
        2 * (5 * layers * layer + vocab * hidden) + 4 * heads * head * layers * keys_of_the_prompt
    )


def test_a_tied_head_is_read_whole(tmp_path: Path) -> None:
    model = make_tiny("llama-tied", tmp_path).model()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert work_of(model, point()).weight_bytes == parameters


def test_a_window_bounds_the_keys(tmp_path: Path) -> None:
    model = make_tiny("mistral", tmp_path).model()
    a_key = 2 * 2 * 10 * 4  # keys and values, heads, size, bytes
    assert work_of(model, point(prompt=30, new=4)).cache_bytes == 3 * 7 * a_key


def test_a_mixture_reads_the_experts_that_are_chosen(tmp_path: Path) -> None:
    model = make_tiny("mixtral", tmp_path).model()
    expert_bytes = sum(p.nbytes for name, p in model.named_parameters() if ".experts." in name)
    others = sum(p.nbytes for name, p in model.named_parameters() if ".experts." not in name and "embed" not in name)
    assert work_of(model, point(batch=1)).weight_bytes == others + expert_bytes // 2  # 2 of 4
    assert work_of(model, point(batch=2)).weight_bytes == others + round(expert_bytes * 0.75)  # 1 - 1/2^2


@pytest.mark.parametrize("name", RECIPES)
def test_every_architecture_has_its_work(name: str, tmp_path: Path) -> None:
    found = work_of(make_tiny(name, tmp_path).model(), point(prompt=8, new=4))
    assert 0 < found.decode_flop < found.prefill_flop
    assert found.weight_bytes > 0


@pytest.mark.parametrize(
    ("tries", "best"), [([8, 4, 2, 1], 2), ([0.0625, 0.25, 0.0625, 0.03125, 0.25, 0.25, 0.5], 0.03125)]
)
def test_the_machines_rates_are_the_best_of_several_tries(
    tries: list[float], best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three at least, up to seven while they are short: 8, 4 and 2 s are enough."""
    monkeypatch.setattr("genx.bench.machine._READ_BYTES", 1 << 20)
    monkeypatch.setattr("genx.bench.machine._CPU_SIDE", 8)
    durations = iter(tries[:3] * 2 if tries[0] > 1 else tries * 2)
    now, is_running = 0.0, False

    def clock() -> float:
        nonlocal now, is_running
        now += next(durations) if is_running else 0.0
        is_running = not is_running
        return now

    found = measure_rates("cpu", ("float32",), clock)
    assert found.read_gb_s == (1 << 20) / best / 1e9
    assert found.matmul_gflop_s == {"float32": 2 * 8**3 / best / 1e9}
    assert next(durations, None) is None
