"""The processes that measure: what they answer, and what is said of those that do not."""

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from genx.bench.environment import usable_cores
from genx.bench.jobs import Engine, Job, Loaded
from genx.bench.process import ProcessWorker, WorkerFailure, start_worker, survey
from genx.bench.sweep import Workload
from genx.bench.timing import Sample
from genx.bench.worker import describe_failure, serve
from genx.errors import CheckpointError
from tests.bench.fakes import point, sample
from tests.fixtures.models import write_scripted

JOB = Job("genx", "m", None, "cpu", point(), Workload(top_k=3, do_sample=True), 97, (1, 2))


class Echo:
    """An engine whose run takes as many seconds as its seed says."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def loaded(self) -> Loaded:
        return Loaded(0.5, 3)

    def run(self, seed: int) -> Sample:
        if seed == 13:
            raise MemoryError
        return sample(seed, self.job.point)


def answers(*requests: Any, open_job: Any = Echo) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = []
    serve([json.dumps(request) for request in requests], replies.append, open_job)
    return replies


def test_a_job_survives_the_line() -> None:
    assert Job.from_json(json.loads(json.dumps(JOB.to_json()))) == JOB


def test_each_request_has_its_answer() -> None:
    loaded, first, second = answers(JOB.to_json(), {"seed": 1}, {"seed": 2})
    assert loaded == asdict(Loaded(0.5, 3)) | {"warnings": ()}
    assert (first["ttft_s"], second["ttft_s"]) == (1, 2)


def test_a_run_without_memory_ends_the_worker() -> None:
    assert answers(JOB.to_json(), {"seed": 13}, {"seed": 1})[1:] == [
        {"error": {"status": "oom", "error": "MemoryError"}}
    ]


def test_a_model_that_does_not_load_is_an_answer() -> None:
    def refuse(job: Job) -> Engine:
        raise CheckpointError("no weights")

    assert answers(JOB.to_json(), open_job=refuse) == [{"error": {"status": "failed", "error": "no weights"}}]


def test_want_of_memory_is_known_by_its_causes() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert describe_failure(caught.value)["status"] == "oom"
    wrapped = CheckpointError("model.embed cannot be put on cpu")
    wrapped.__cause__ = caught.value
    assert describe_failure(wrapped) == {"status": "oom", "error": "model.embed cannot be put on cpu"}
    assert describe_failure(torch.OutOfMemoryError("CUDA out of memory."))["status"] == "oom"


def test_other_failures_say_what_they_are() -> None:
    assert describe_failure(KeyError("x")) == {"status": "failed", "error": "KeyError: 'x'"}
    assert describe_failure(RuntimeError("shape\nmore")) == {"status": "failed", "error": "RuntimeError: shape"}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    folder = write_scripted(tmp_path / "model", [5, 6, 7])
    return Job("genx", str(folder), None, "cpu", point(prompt=6, new=3), Workload(), 97)


def test_a_point_in_a_process_of_its_own(job: Job) -> None:
    worker, loaded = start_worker(job)
    try:
        assert loaded["threads"] == 2
        assert loaded["load_s"] > 0
        answer = worker.ask({"seed": 4})
        assert (answer["new_tokens"], answer["token_passes"]) == (3, 8)
        assert answer["peak_memory_bytes"] > 1 << 20
    finally:
        worker.close()


def test_a_process_that_is_killed_says_so(job: Job) -> None:
    worker, _ = start_worker(job)
    assert isinstance(worker, ProcessWorker)
    try:
        os.kill(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        with pytest.raises(WorkerFailure) as caught:
            worker.ask({"seed": 4})
    finally:
        worker.close()
    if sys.platform != "win32":
        assert caught.value.status == "killed"
        assert str(caught.value).startswith("the process was killed, most likely for want of memory")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_process_that_crashes_says_how(job: Job) -> None:
    worker, _ = start_worker(job)
    assert isinstance(worker, ProcessWorker)
    try:
        os.kill(worker.pid, signal.SIGABRT)
        with pytest.raises(WorkerFailure, match="the process ended with signal SIGABRT") as caught:
            worker.ask({"seed": 4})
    finally:
        worker.close()
    assert caught.value.status == "crashed"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_is_the_parents(job: Job) -> None:
    """It reaches the whole group of processes; a worker answers all the same, and ends when it is closed."""
    worker, _ = start_worker(job)
    assert isinstance(worker, ProcessWorker)
    try:
        os.kill(worker.pid, signal.SIGINT)
        assert worker.ask({"seed": 4})["new_tokens"] == 3
    finally:
        worker.close()


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailure, match=r"config\.json") as caught:
        start_worker(Job("genx", str(tmp_path), None, "cpu", point(), Workload(), 97))
    assert caught.value.status == "failed"


def test_the_machine_and_the_model_are_looked_at_in_a_process_of_its_own(job: Job) -> None:
    found = survey(job.model, "auto", 1, ("auto", "bfloat16"), ("none",), "auto")
    assert (found.device, found.arithmetic) == ("cpu", (("float32", "float32"), ("bfloat16", "bfloat16")))
    assert (found.context, found.vocab_size) == (64, 300)
    assert found.rates.threads == 1
    assert found.rates.read_gb_s > 0
    assert set(found.rates.matmul_gflop_s) == {"float32", "bfloat16"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
def test_affinity_is_respected(job: Job) -> None:
    """abetlen/llama-cpp-python#89: bound to one core, it is one thread, and the report says so."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
        assert survey(job.model, "cpu", None, ("float32",), ("none",), "auto").rates.threads == 1
    finally:
        os.sched_setaffinity(0, before)
