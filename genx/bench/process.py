"""A process that measures, seen from the one that asks. No torch.

Each point has its own, so that its peak memory is that point's, and its crash is one row's.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Protocol

from genx.bench.jobs import Job, Survey
from genx.bench.limits import Rates

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from genx.bench.worker import main; main()"
_DYING_S = 10  # from the last line of a process to its end
_MOST_STDERR = 4096  # bytes of a dead process's last words that are read


class WorkerFailure(Exception):
    """A point could not be measured; `status` is oom, failed, killed or crashed."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Worker(Protocol):
    """Something that answers requests for one point, one at a time."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            WorkerFailure: there is none.
        """

    def close(self) -> None:
        """End it, whatever it is doing."""


class ProcessWorker:
    """A worker in a process of its own. The process ends with the `with` block."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        """
        Args:
            environment: variables on top of this process's.
        """
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        # The same interpreter and the same import path as here; -P keeps the current folder out of it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(environment or {})},
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def __enter__(self) -> "ProcessWorker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._death() from None
        if "error" in answer:
            raise WorkerFailure(answer["error"]["status"], answer["error"]["error"])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # what was still to be written has no reader

    def _death(self) -> WorkerFailure:
        try:
            code = self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            return WorkerFailure("crashed", f"the process no longer answers{self._last_words()}")
        last = self._last_words()
        if sys.platform != "win32" and code == -signal.SIGKILL:
            return WorkerFailure("killed", f"the process was killed, most likely for want of memory{last}")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return WorkerFailure("crashed", f"the process ended with {how}{last}")

    def _last_words(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - _MOST_STDERR, 0))
        lines = self._stderr.read().decode("utf-8", errors="replace").split("\n")
        spoken = [line.strip() for line in lines if line.strip()]
        return f": {spoken[-1]}" if spoken else ""


def start_worker(job: Job) -> tuple[Worker, dict[str, Any]]:
    """A process with a job, and what its engine says once it is loaded.

    Raises:
        WorkerFailure: it could not be loaded.
    """
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}  # a peer loads what is there
    worker = ProcessWorker(offline)
    try:
        return worker, worker.ask(job.to_json())
    except BaseException:
        worker.close()
        raise


def survey(
    model: str, device: str, threads: int | None, dtypes: Sequence[str], quantize: Sequence[str], kernels: str
) -> Survey:
    """What this machine can do and what the model is, found out in a process of its own.

    Args:
        model: the checkpoint's folder or file.
        device: auto or a name.
        threads: None: torch's choice.
        dtypes: see `genx.engine.arithmetic.choose_arithmetic`, as the next two.
        quantize: as there, several.
        kernels: as there.

    Raises:
        WorkerFailure: it cannot be found out.
    """
    with ProcessWorker() as worker:
        place = {"model": model, "device": device, "threads": threads}
        asked = {"dtypes": list(dtypes), "quantize": list(quantize), "kernels": kernels}
        answer = worker.ask({"survey": {**place, **asked}})
    arithmetic = tuple((dtype, weights) for dtype, weights in answer["arithmetic"])
    return Survey(**{**answer, "arithmetic": arithmetic, "rates": Rates(**answer["rates"])})
