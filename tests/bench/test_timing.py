"""What counts as what, with a clock that moves only when a model runs: every figure is exact."""

from pathlib import Path

import pytest
import torch

from genx.bench.engines.genx_engine import GenxEngine
from genx.bench.jobs import Job
from genx.bench.sweep import Point, Workload
from genx.bench.timing import Sample, Timeline, token_passes
from genx.errors import UsageError
from tests.architectures import VOCAB, make_tiny
from tests.bench.fakes import ModelClock, point
from tests.fixtures.models import write_scripted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_scripted(tmp_path / "model", [5, 6, 7], context=64, generation_config={"eos_token_id": 6})


def engine(folder: Path, at: Point, clock: ModelClock, **workload: object) -> GenxEngine:
    job = Job("genx", str(folder), None, "cpu", at, Workload(**workload), 97)  # type: ignore[arg-type]
    made = GenxEngine(job, clock)
    clock.attach(made._model)
    return made


def run(folder: Path, at: Point, **workload: object) -> tuple[Sample, ModelClock]:
    clock = ModelClock()
    return engine(folder, at, clock, **workload).run(seed=3), clock


def test_the_prompts_time_is_not_in_the_decode_rate(folder: Path) -> None:
    """lmstudio-ai/mlx-engine#88: the time of the prompt was in the divisor, so that long prompts looked slow."""
    found, _ = run(folder, point(prompt=20, new=10))
    assert found.ttft_s == 10.0
    assert found.prefill_tps == 2.0  # 20 tokens in 10 s, the first new token with them
    assert found.decode_tps == 1.0  # 9 tokens in 9 s
    assert found.latencies_s == [1.0] * 9
    assert found.duration_s == 19.0


def test_rates_count_all_rows_of_a_batch(folder: Path) -> None:
    found, clock = run(folder, point(prompt=20, new=10, batch=3))
    assert (found.prefill_tps, found.decode_tps) == (6.0, 3.0)
    assert found.ttft_s == 10.0
    assert found.token_passes == 29  # of a row
    assert clock.passes == [(3, 20)] + [(3, 1)] * 9


def test_tokens_are_counted_not_the_characters_of_their_text(folder: Path) -> None:
    """ml-explore/mlx-examples PR #392: characters were counted, three to five a token."""
    found, _ = run(folder, point(prompt=2, new=4))
    assert (found.new_tokens, len(found.latencies_s)) == (4, 3)


def test_an_end_of_text_id_ends_nothing(folder: Path) -> None:
    """vllm-project/vllm#435: answers ended early and the rate was taken from the length that had been asked for.

    The script's second id is the checkpoint's end of text.
    """
    found, _ = run(folder, point(prompt=1, new=12))
    assert found.new_tokens == 12
    assert found.token_passes == 12


def test_the_rate_is_of_the_tokens_that_came() -> None:
    """vllm-project/vllm#435, where an engine does stop early: 5 tokens came."""
    assert Timeline(1, 8, 0.0, (1.0, 2.0, 3.0, 4.0, 5.0)).decode_tps == 1.0


def test_ids_are_counted_as_they_were_generated(tmp_path: Path) -> None:
    """CentML/flexible-inference-bench PR #66: the text was tokenised again, which merges 15 spaces into one id."""
    spaces = write_scripted(tmp_path / "spaces", [32] * 15, context=64)
    found, _ = run(spaces, point(prompt=1, new=15))
    assert found.new_tokens == 15


def test_no_new_tokens_measure_the_prompt_alone(folder: Path) -> None:
    found, clock = run(folder, point(prompt=20, new=0))
    assert (found.ttft_s, found.prefill_tps, found.decode_tps, found.latencies_s) == (10.0, 2.0, None, [])
    assert (found.new_tokens, found.token_passes) == (0, 20)
    assert clock.passes == [(1, 20)]


def test_one_new_token_has_no_decode_rate(folder: Path) -> None:
    found, _ = run(folder, point(prompt=20, new=1))
    assert (found.prefill_tps, found.decode_tps, found.new_tokens) == (2.0, None, 1)


@pytest.mark.parametrize("forward_only", [False, True])
def test_the_depth_is_read_before_the_clock_starts(folder: Path, forward_only: bool) -> None:
    found, clock = run(folder, point(prompt=5, new=3, depth=30), forward_only=forward_only)
    assert clock.passes == [(1, 30), (1, 5), (1, 1), (1, 1)]
    assert (found.ttft_s, found.prefill_tps, found.decode_tps) == (10.0, 0.5, 1.0)
    assert found.token_passes == 7  # without those of the depth
    assert found.duration_s == 12.0


def test_the_model_alone_reads_what_the_loop_reads(folder: Path) -> None:
    loop, loop_clock = run(folder, point(prompt=6, new=5))
    model, model_clock = run(folder, point(prompt=6, new=5), forward_only=True)
    assert loop_clock.passes == model_clock.passes
    assert (loop.new_tokens, loop.cache_bytes) == (model.new_tokens, model.cache_bytes)


@pytest.mark.parametrize("forward_only", [False, True])
def test_what_longrope_reads_again_is_counted(tmp_path: Path, forward_only: bool) -> None:
    """Once when the prompt makes the text a long one, or a new token does."""
    tiny = make_tiny("phi3-longrope", tmp_path, max_position_embeddings=64)
    for depth, prompt, passes in ((36, 5, [36, 41, 1, 1]), (34, 5, [34, 5, 1, 41])):
        found, clock = run(
            tiny.folder, point(prompt=prompt, new=3 + (depth < 36), depth=depth), forward_only=forward_only
        )
        read = [length for _, length in clock.passes]
        assert read[:4] == passes
        assert found.token_passes == sum(read) - depth


@pytest.mark.parametrize("forward_only", [False, True])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(("prompt", "new"), [(10, 10), (64, 5), (50, 30)])
def test_token_passes_are_those_of_the_specification(
    folder: Path, prompt: int, new: int, cache: bool, forward_only: bool
) -> None:
    """Counted in the model, past its context of 64 too."""
    found, _ = run(folder, point(prompt=prompt, new=new), cache=cache, forward_only=forward_only)
    assert found.token_passes == token_passes(prompt, new, 64, cache=cache)


@pytest.mark.parametrize(
    ("prompt", "new", "context", "cached", "uncached"),
    [(100, 100, 2048, 199, 14_950), (500, 500, 512, 249_856, 255_922), (7, 1, 64, 7, 7), (7, 0, 64, 7, 7)],
)
def test_the_specifications_numbers(prompt: int, new: int, context: int, cached: int, uncached: int) -> None:
    assert token_passes(prompt, new, context, cache=True) == cached
    assert token_passes(prompt, new, context, cache=False) == uncached


def test_cache_bytes_are_what_the_cache_allocates(folder: Path) -> None:
    kept, _ = run(folder, point(prompt=6, new=4, batch=2))
    dropped, _ = run(folder, point(prompt=6, new=4, batch=2), cache=False)
    assert kept.cache_bytes == 2 * 2 * 64 * (6 + 4) * 4  # rows, keys and values, width, positions, bytes
    assert dropped.cache_bytes == 0


def test_each_repeat_reads_fresh_tokens(folder: Path) -> None:
    """vllm-project/vllm#52884, #54227: with fixed prompts the prefix was served from a cache, 1.86 to 2.32 times as
    fast."""
    at = point(prompt=6, new=2, depth=4, batch=2)
    clock = ModelClock()
    made = engine(folder, at, clock)
    seen: list[list[list[int]]] = []
    made._model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].tolist()))
    for seed in (1, 2, 1):
        made.run(seed)
    first, second, again = seen[0:3], seen[3:6], seen[6:9]
    assert first == again  # the seed says which
    rows = [row for text in (first, second) for row in text[0]]
    assert len({tuple(row) for row in rows}) == 4  # no two depths alike
    assert all(0 <= token < VOCAB for row in rows for token in row)


def test_prompts_are_cut_from_a_text(folder: Path) -> None:
    text = tuple(range(40))
    job = Job("genx", str(folder), None, "cpu", point(prompt=6, new=2, batch=3), Workload(), 97, text)
    made = GenxEngine(job, ModelClock())
    seen: list[list[list[int]]] = []
    made._model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].tolist()))
    made.run(1)
    made.run(2)
    assert all(row == list(range(row[0], row[0] + 6)) for prompt in (seen[0], seen[2]) for row in prompt)
    assert seen[0] != seen[2]


def test_a_text_that_is_too_short_is_refused(folder: Path) -> None:
    job = Job("genx", str(folder), None, "cpu", point(prompt=6), Workload(), 97, (1, 2, 3))
    with pytest.raises(UsageError, match="the prompt file has 3 tokens; 6 are needed; give a longer text"):
        GenxEngine(job, ModelClock()).run(1)


def test_a_prompt_past_the_context_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="depth 60 and prompt 5 are more than the model's context of 64 tokens"):
        engine(folder, point(prompt=5, depth=60), ModelClock())


def test_load_time_is_the_clocks(folder: Path) -> None:
    class Ticking(ModelClock):
        def __call__(self) -> float:
            self.now += 0.25
            return self.now

    made = engine(folder, point(), Ticking())
    assert made.loaded().load_s == 0.25


def test_threads_are_obeyed_and_reported(folder: Path) -> None:
    """abetlen/llama-cpp-python#89: the speed depended on a number of threads that nobody stated."""
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            at = Point(8, 4, 1, 0, "float32", threads, "float32")
            made = engine(folder, at, ModelClock())
            assert made.loaded().threads == torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_greedy_text_does_not_depend_on_threads(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#163: another order of float sums, another text."""
    model = make_tiny("llama", tmp_path).model()
    x = torch.randint(0, VOCAB, (2, 13), generator=torch.Generator().manual_seed(5))
    alone = model.generate(x, 6, do_sample=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(model.generate(x, 6, do_sample=False), alone)
    finally:
        torch.set_num_threads(before)
