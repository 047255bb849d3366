"""Warm-up, repeats, turns and failures, with workers that answer at once."""

from collections.abc import Iterable
from itertools import chain, repeat

import pytest

from genx.bench.jobs import GENX, LLAMA_CPP, TRANSFORMERS, Job
from genx.bench.measure import Doing, Measured, measure
from genx.bench.plan import Plan
from genx.bench.process import WorkerFailure
from genx.bench.records import Record
from tests.bench.fakes import FakeWorkers, plan, point

STEADY = (1.0,)


def workers(*durations: float | WorkerFailure, **by_engine: Iterable[float | WorkerFailure]) -> FakeWorkers:
    """Seconds a token of each run: as given, then the last one for ever."""

    def of(job: Job) -> Iterable[float | WorkerFailure]:
        mine = tuple(by_engine.get(job.engine.replace(".", "_"), durations or STEADY))
        return chain(mine, repeat(mine[-1]))

    return FakeWorkers(of)


def records(of: Plan, fakes: FakeWorkers, known: Iterable[Record] = ()) -> list[Record]:
    found = [event.record for event in measure(of, tuple(known), fakes.start) if isinstance(event, Measured)]
    assert fakes.open == 0  # every process has ended
    return found


def test_the_figures_of_a_point() -> None:
    (found,) = records(plan(point(prompt=8, new=5)), workers(2.0, 1.0, 4.0, 3.0, 5.0))
    written = found.to_json()
    assert written["ttft_s"] == {
        "median": 3.0,
        "ci95": [1.0, 5.0],
        "ci_coverage": 0.9375,  # what five repeats can say
        "samples": [2.0, 1.0, 4.0, 3.0, 5.0],
    }
    assert written["prefill_tps"]["samples"] == [4.0, 8.0, 2.0, 8 / 3, 1.6]
    assert written["decode_tps"]["samples"] == [0.5, 1.0, 0.25, 1 / 3, 0.2]
    assert written["itl_ms"]["samples"] == [2000.0, 1000.0, 4000.0, 3000.0, 5000.0]
    assert [written["itl_ms"][name] for name in ("median", "p50", "p90", "p99")] == [3000.0, 3000.0, 5000.0, 5000.0]
    assert written["itl_ms"]["latencies"] == [[1000.0 * s] * 4 for s in (2.0, 1.0, 4.0, 3.0, 5.0)]
    assert written["peak_memory_bytes"]["median"] == 10**8
    assert written["cache_bytes"]["median"] == 640
    assert written["load_s"] == {"median": 0.5, "ci95": [0.5, 0.5], "ci_coverage": 0.0, "samples": [0.5]}
    assert written["noisy"] == ["ttft_s", "prefill_tps", "decode_tps", "itl_ms"]


def test_the_limit_and_the_share_of_it() -> None:
    """A GB of weights a token at 10 GB/s: no more than 10 tokens/s."""
    (found,) = records(plan(point(prompt=8, new=5)), workers(0.2))
    written = found.to_json()
    assert written["limits"] == {
        "weight_bytes": 10**9,
        "cache_bytes": 0,
        "bytes_per_token": 1e9,
        "flop_per_token": 10**6,
        "prefill_tps": 80.0,
        "decode_tps": 10.0,
    }
    assert written["decode_tps"]["median"] == pytest.approx(5.0)
    assert written["limit_share"]["median"] == pytest.approx(0.5)
    assert written["noisy"] == []


def test_the_share_of_a_prompt_alone_is_that_of_prefill() -> None:
    (found,) = records(plan(point(prompt=8, new=0)), workers(0.2))
    assert found.measures["limit_share"].median == pytest.approx((8 / 0.2) / 80.0)
    assert "decode_tps" not in found.measures
    assert found.to_json()["decode_tps"] is None


def test_token_counts_are_apart() -> None:
    """vllm-project/vllm PR #8914: one number summed what was read and what was written."""
    (found,) = records(plan(point(prompt=7, new=5)), workers())
    written = found.to_json()
    assert [written[name] for name in ("prompt_tokens", "new_tokens", "total_tokens")] == [7, 5, 12]
    assert written["token_passes_formula"] == {"cached": 11, "uncached": 45}


def test_every_sample_is_there_with_its_unit() -> None:
    """ollama/ollama PR #14240: odd units, one run, the cold start in it."""
    (found,) = records(plan(repeats=7, warmup=1), workers(99.0, 1.0))
    written = found.to_json()
    for name in ("ttft_s", "prefill_tps", "decode_tps", "itl_ms", "peak_memory_bytes", "cache_bytes"):
        assert len(written[name]["samples"]) == 7, name
    assert max(written["ttft_s"]["samples"]) == 1.0
    assert written["ttft_s"]["ci_coverage"] >= 0.95


def test_a_slow_first_run_is_not_measured() -> None:
    """ggml-org/llama.cpp PR #8187: the warm-up was too short, and the first run that counted was slow."""
    fakes = workers(0.9, 0.15, 0.1, 0.1)
    (found,) = records(plan(warmup=None), fakes)
    assert found.warmup_runs == 4  # 0.9, 0.15, 0.1 and 0.1: two in a row alike
    assert found.warmup_stable is True
    assert found.measures["ttft_s"].samples == (0.1,) * 5


def test_the_warm_up_is_bounded() -> None:
    fakes = workers(0.9, 0.8, 0.7, 0.6, 0.5, 0.1)
    (found,) = records(plan(warmup=None), fakes)
    assert (found.warmup_runs, found.warmup_stable) == (5, False)


def test_long_runs_are_warmed_up_twice() -> None:
    (found,) = records(plan(point(new=5), warmup=None), workers(10.0, 1.0))
    assert (found.warmup_runs, found.warmup_stable) == (2, False)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_warm_ups_is_obeyed(count: int) -> None:
    """eugr/llama-benchy#10: the flag did nothing."""
    fakes = workers()
    (found,) = records(plan(warmup=count, repeats=2), fakes)
    assert found.warmup_runs == count
    assert len(fakes.asked) == count + 2


def test_repeats_have_the_seeds_of_the_record_whatever_the_warm_up() -> None:
    for warmup in (0, 2):
        fakes = workers()
        records(plan(warmup=warmup, repeats=3), fakes)
        assert fakes.asked[warmup:] == [(GENX, 1000), (GENX, 1001), (GENX, 1002)]
        assert len({seed for _, seed in fakes.asked}) == warmup + 3


def test_peers_are_measured_in_turns_on_the_same_seeds() -> None:
    fakes = workers(genx=[1.0], transformers=[2.0], llama_cpp=[4.0])
    found = records(plan(repeats=3, peers=(TRANSFORMERS, LLAMA_CPP), gguf="x.gguf", gguf_format="Q8_0"), fakes)
    order = [GENX, TRANSFORMERS, LLAMA_CPP]
    assert [engine for engine, _ in fakes.asked] == order + order[1:] + order[:1] + order[2:] + order[:2]
    assert [seed for _, seed in fakes.asked] == [1000] * 3 + [1001] * 3 + [1002] * 3
    assert [(record.engine, record.weights) for record in found] == [
        (GENX, "float32"),
        (TRANSFORMERS, "float32"),
        (LLAMA_CPP, "Q8_0"),
    ]
    assert found[0].ratio == {}
    assert found[1].ratio["decode_tps"].median == 2.0  # genx is twice as fast
    assert found[2].ratio["prefill_tps"].median == 4.0


def test_transformers_has_the_same_limit_and_llama_cpp_none() -> None:
    found = records(plan(peers=(TRANSFORMERS, LLAMA_CPP), gguf="x.gguf"), workers())
    assert found[1].limits == found[0].limits
    assert found[2].limits is None


@pytest.mark.parametrize("status", ["oom", "killed", "crashed", "failed"])
def test_a_point_that_fails_is_a_row_and_the_sweep_goes_on(status: str) -> None:
    """ggml-org/llama.cpp#22815, #26236: one point without memory ended the sweep."""

    def durations(job: Job) -> list[float | WorkerFailure]:
        return [1.0, WorkerFailure(status, "no more")] if job.point.batch == 2 else [1.0] * 9

    fakes = FakeWorkers(durations)
    found = records(plan(point(batch=1), point(batch=2), point(batch=4), repeats=2), fakes)
    assert [(record.batch, record.status, record.error) for record in found] == [
        (1, "ok", None),
        (2, status, "no more"),
        (4, "ok", None),
    ]
    assert found[1].to_json()["ttft_s"] is None


def test_a_worker_that_does_not_load_is_a_row() -> None:
    class Broken(FakeWorkers):
        def start(self, job: Job):  # type: ignore[no-untyped-def]
            raise WorkerFailure("failed", "no weights")

    found = records(plan(), Broken(lambda job: STEADY))
    assert [(record.status, record.error) for record in found] == [("failed", "no weights")]


def test_a_peer_that_fails_leaves_genx_its_figures() -> None:
    fakes = workers(genx=[1.0], transformers=[1.0, WorkerFailure("oom", "full")])
    found = records(plan(repeats=3, peers=(TRANSFORMERS,)), fakes)
    assert [(record.engine, record.status) for record in found] == [(GENX, "ok"), (TRANSFORMERS, "oom")]
    assert len(found[0].measures["ttft_s"].samples) == 3


def test_known_points_are_not_run_again() -> None:
    both = plan(point(batch=1), point(batch=2))
    first = records(plan(point(batch=1)), workers(2.0))
    fakes = workers(1.0)
    events = list(measure(both, first, fakes.start))
    found = [event for event in events if isinstance(event, Measured)]
    assert [(event.record.batch, event.is_new) for event in found] == [(1, False), (2, True)]
    assert found[0].record == first[0]
    assert [job.point.batch for job in fakes.started] == [2]


def test_known_points_that_failed_or_differ_are_run_again() -> None:
    failed = records(plan(), workers(WorkerFailure("oom", "full")))
    other = records(plan(point(dtype="bfloat16")), workers())
    fakes = workers()
    assert [record.status for record in records(plan(), fakes, [*failed, *other])] == ["ok"]
    assert len(fakes.started) == 1


def test_a_point_is_known_only_with_all_its_peers() -> None:
    alone = records(plan(), workers())
    fakes = workers()
    records(plan(peers=(TRANSFORMERS,)), fakes, alone)
    assert [job.engine for job in fakes.started] == [GENX, TRANSFORMERS]


def test_progress_goes_from_nothing_to_all() -> None:
    events = [e for e in measure(plan(point(), point(batch=2)), (), workers().start) if isinstance(e, Doing)]
    shares = [event.done / event.total for event in events]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] < 1
    assert events[0].what == "genx 8+4, batch 1, float32: loading"
    assert events[-1].what == "genx 8+4, batch 2, float32: repeat 5 of 5"


def test_leaving_early_ends_the_processes() -> None:
    fakes = workers()
    events = measure(plan(), (), fakes.start)
    next(events)
    next(events)
    assert fakes.open == 1
    events.close()  # type: ignore[attr-defined]
    assert fakes.open == 0


@pytest.mark.parametrize("seed", [(1 << 64) - 1, -5])
def test_every_seed_that_a_run_takes_is_one_for_all_its_repeats(seed: int) -> None:
    fakes = workers()
    records(plan(seed=seed, repeats=3), fakes)
    seeds = [used for _, used in fakes.asked]
    assert len(set(seeds)) == 3
    assert all(0 <= used < 1 << 63 for used in seeds)
