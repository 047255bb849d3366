"""Rows that others generate: what comes back is what this machine generates, and what does not is tried again."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from genx.core.base_model import BaseModel
from genx.engine.arithmetic import choose_arithmetic
from genx.engine.prompt import Prompt
from genx.engine.rows import batch as batches
from genx.engine.rows import remote
from genx.engine.rows.active_row import Job
from genx.engine.rows.batch import Advanced, Batch, Finished
from genx.engine.rows.identity import model_digest
from genx.engine.rows.ray_cluster import Share, share_out
from genx.engine.rows.reading import Part
from genx.engine.rows.remote import RemoteBatch, Report, decode_jobs
from genx.engine.rows.worker import Work, Worker
from genx.engine.settings import GenerationSettings
from genx.errors import GenxError
from genx.tokenization import Tokenizer, load_tokenizer
from tests.cli.rows import write_babbler

Blocks = Sequence[bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("babbler"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture
def work(folder: Path) -> Work:
    return Work(
        model=folder,
        digest=model_digest(folder),
        arithmetic=choose_arithmetic("cpu", "auto", "none", "torch"),
        threads=None,
        batch_size=3,
        cache_bytes=None,
        batch_invariant=False,
    )


def jobs_of(tokenizer: Tokenizer, count: int) -> list[Job]:
    return [
        Job(
            place,
            Prompt(tuple(tokenizer.encode("abc" * (1 + place % 5)))),
            GenerationSettings(max_new_tokens=1 + place * 7 % 13, do_sample=True, top_k=20, seed=place),
            lambda: tokenizer.incremental(skip_special_tokens=True),
        )
        for place in range(count)
    ]


def asked(worker: Worker, blocks: Blocks) -> Iterator[Report]:
    for block in blocks:
        for columns in worker({"jobs": [block]}):
            yield from map(pickle.loads, columns["report"])


def texts(batch: Batch | RemoteBatch, jobs: list[Job]) -> dict[int, tuple[str, tuple[int, ...], str | None]]:
    found = {}
    for event in batch.run(iter(jobs)):
        if isinstance(event, Finished):
            assert event.job.place not in found
            summary = event.summary
            found[event.job.place] = (summary.text, summary.ids, None if summary.error is None else str(summary.error))
    assert sorted(found) == [job.place for job in jobs]
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_a_worker_gives_what_this_machine_gives(
    work: Work, tokenizer: Tokenizer, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_WINDOW", 20)  # several windows
    monkeypatch.setattr(remote, "_BETWEEN_LOOKS", 7)
    worker = Worker(replace(work, batch_size=batch_size))
    jobs = jobs_of(tokenizer, 50)
    here = texts(Batch(worker._model, size=4, cache_bytes=1 << 40), jobs)
    assert texts(RemoteBatch(lambda blocks: asked(worker, blocks), batch_size), jobs) == here


def test_tokens_are_counted(work: Work, tokenizer: Tokenizer) -> None:
    worker = Worker(work)
    jobs = jobs_of(tokenizer, 20)
    events = list(RemoteBatch(lambda blocks: asked(worker, blocks), 3).run(iter(jobs)))
    generated = sum(len(event.summary.ids) for event in events if isinstance(event, Finished))
    assert sum(event.new_tokens for event in events if isinstance(event, Advanced)) == generated > 0


def test_rows_of_workers_that_die_are_tried_again_and_at_last_alone(work: Work, tokenizer: Tokenizer) -> None:
    """A worker gets through one row of each block; row 5 ends any worker."""
    worker = Worker(work)
    sizes: list[list[int]] = []

    def dying(blocks: Blocks) -> Iterator[Report]:
        sizes.append([len(decode_jobs(block, tokenizer)) for block in blocks])
        for block in blocks:
            if decode_jobs(block, tokenizer)[0].place != 5:
                first = next(asked(worker, [remote.encode_jobs(decode_jobs(block, tokenizer)[:1])]))
                yield first
                yield first  # what comes twice is counted once

    jobs = jobs_of(tokenizer, 30)
    here = texts(Batch(worker._model, size=4, cache_bytes=1 << 40), jobs)
    found = texts(RemoteBatch(dying, 2), jobs)
    assert found.pop(5) == ("", (), "its worker ended before it, in each of 3 attempts")
    here.pop(5)
    assert found == here
    assert sizes[0] == [16, 14]
    assert sizes[1] == [2] * 14
    assert set(sizes[2]) == {1}


def test_what_a_block_raises_costs_no_other_row(
    work: Work, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(work)
    jobs = jobs_of(tokenizer, 12)
    here = texts(Batch(worker._model, size=4, cache_bytes=1 << 40), jobs)
    read = batches.read_parts

    def failing(model: BaseModel, parts: Sequence[Part], in_blocks: bool) -> Tensor:
        if any(part.row.job.place == 7 for part in parts) and all(part.row.generates for part in parts):
            raise MemoryError("no room")
        return read(model, parts, in_blocks)

    monkeypatch.setattr(batches, "read_parts", failing)
    found = texts(RemoteBatch(lambda blocks: asked(worker, blocks), 2), jobs)
    error = found.pop(7)[2]
    assert error is not None
    assert error.startswith("out of memory: no room")
    assert error.endswith("in each of 3 attempts")
    here.pop(7)
    assert found == here


def test_rows_of_an_error_come_back_with_it(work: Work, tokenizer: Tokenizer) -> None:
    worker = Worker(replace(work, cache_bytes=1))
    found = texts(RemoteBatch(lambda blocks: asked(worker, blocks), 2), jobs_of(tokenizer, 2))
    assert "the row's cache needs" in str(found[0][2])


@pytest.mark.parametrize("what", ["absent", "another"])
def test_a_machine_without_the_model_is_named(work: Work, tokenizer: Tokenizer, what: str) -> None:
    wrong = replace(work, model=work.model / "x") if what == "absent" else replace(work, digest="0")
    why = "there is no .*; every machine needs" if what == "absent" else "is another model; every machine needs"
    worker = Worker(wrong)
    with pytest.raises(GenxError, match=rf"^a worker on \S+ cannot run the model: .*{why}"):
        texts(RemoteBatch(lambda blocks: asked(worker, blocks), 2), jobs_of(tokenizer, 2))


def test_workers_fill_the_machines() -> None:
    machines = [{"memory": 1.0}, {"CPU": 4.0}, {"CPU": 9.0, "GPU": 2.0}]  # the first only leads
    assert share_out(machines, on_gpus=False, threads=None) == Share(4, 0, workers=3, most_on_a_machine=2)
    assert share_out(machines, on_gpus=False, threads=3) == Share(3, 0, workers=4, most_on_a_machine=3)
    assert share_out(machines, on_gpus=True, threads=3) == Share(0, 1, workers=2, most_on_a_machine=2)
    for on_gpus, threads, what in ((True, None, "a GPU"), (False, None, "a CPU"), (False, 7, "7 CPUs for a worker")):
        with pytest.raises(GenxError, match=f"^no machine of the Ray cluster has {what};"):
            share_out([{"CPU": 4.0}] if threads else [], on_gpus=on_gpus, threads=threads)
