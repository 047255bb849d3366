"""Peers read the same tokens as genx, and count as genx does."""

from collections.abc import Iterator

import pytest
import torch

from genx.bench.engines.genx_engine import GenxEngine
from genx.bench.engines.llama_cpp_engine import Row, sample_of
from genx.bench.engines.transformers_engine import TransformersEngine
from genx.bench.jobs import Job
from genx.bench.sweep import Workload
from genx.errors import GenxError, UsageError
from tests.architectures import VOCAB, make_tiny
from tests.bench.fakes import point

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny("llama", tmp_path_factory.mktemp("peer")).folder)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("depth", "new", "cache", "do_sample"),
    [(0, 5, True, False), (7, 5, True, True), (0, 5, False, False), (7, 0, True, False)],
)
def test_transformers_reads_the_same_tokens_as_often(
    folder: str, depth: int, new: int, cache: bool, do_sample: bool
) -> None:
    at = point(prompt=6, new=new, batch=2, depth=depth)
    workload = Workload(cache=cache, do_sample=do_sample, top_k=5 if do_sample else None)
    seen: dict[str, list[torch.Tensor]] = {}
    for engine in (GenxEngine, TransformersEngine):
        made = engine(Job("", folder, None, "cpu", at, workload, VOCAB))
        ids = seen.setdefault(engine.__name__, [])

        def note(
            module: object, inputs: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor], ids: list = ids
        ) -> None:  # type: ignore[type-arg]
            ids.append(named["input_ids"] if "input_ids" in named else inputs[0])

        made._model.register_forward_pre_hook(note, with_kwargs=True)
        found = made.run(11)
        assert found.new_tokens == new
        assert found.token_passes == (6 + max(new - 1, 0) if cache else 6 + 7 + 8 + 9 + 10)
        assert (found.decode_tps is None) == (new == 0)
    ours, theirs = seen.values()
    prompts = 2 if depth else 1
    assert [ids.tolist() for ids in ours[:prompts]] == [ids.tolist() for ids in theirs[:prompts]]
    assert [ids.shape for ids in ours] == [ids.shape for ids in theirs]


def test_the_model_alone_has_no_peer(folder: str) -> None:
    with pytest.raises(UsageError, match="--forward-only times genx's model alone"):
        TransformersEngine(Job("", folder, None, "cpu", point(), Workload(forward_only=True), VOCAB))


def chunk(tokens: int, milliseconds: float, cached: int = 0) -> dict[str, object]:
    return {"timings": {"predicted_n": tokens, "predicted_ms": milliseconds, "cache_n": cached}}


def test_llama_cpps_own_counts_and_times() -> None:
    """Text is held back until its characters are whole: a first chunk of two tokens, one of which came earlier."""
    row = Row()
    row.take(chunk(2, 1000.0, cached=4), 13.0)
    row.take(chunk(3, 3000.0, cached=4), 15.0)
    row.take(chunk(5, 7000.0, cached=4), 19.0)
    found = sample_of([row], started=2.0, prompt_tokens=20, depth=4, new_tokens=5)
    assert found.ttft_s == 10.0
    assert found.prefill_tps == 2.0
    assert found.decode_tps == 4 / 7
    assert found.latencies_s == [1.0, 2.0, 2.0, 2.0]
    assert (found.new_tokens, found.reused_tokens, found.duration_s) == (5, 0, 17.0)


def test_rows_of_llama_cpp_are_counted_once_all_have_begun() -> None:
    early, late = Row(), Row()
    for row, offset in ((early, 0.0), (late, 2.0)):
        for tokens in range(1, 6):
            row.take(chunk(tokens, 1000.0 * (tokens - 1), cached=3), 10.0 + offset + tokens - 1)
    found = sample_of([early, late], started=0.0, prompt_tokens=6, depth=0, new_tokens=5)
    assert found.ttft_s == 12.0
    assert found.prefill_tps == 1.0
    assert found.decode_tps == (2 + 4) / 4  # from 12 to 16; three of the early row's tokens had come
    assert found.reused_tokens == 6


def test_what_llama_cpp_refuses_is_an_error() -> None:
    row = Row()
    row.refuse({"error": {"message": "Prompt contains invalid tokens"}})
    with pytest.raises(GenxError, match=r"llama.cpp: Prompt contains invalid tokens"):
        sample_of([row], 0.0, 6, 0, 5)
    with pytest.raises(GenxError, match=r"llama.cpp: no answer"):
        sample_of([Row()], 0.0, 6, 0, 5)
