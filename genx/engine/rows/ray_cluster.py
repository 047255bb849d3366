"""A run's rows on the machines of a Ray cluster: Ray Data maps blocks of jobs over a pool of workers.

Needs the extra genx[ray]. No torch.
"""

import atexit
import logging
import os
import pickle
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TextIO

from genx.engine.rows.remote import Report
from genx.engine.rows.worker import Work, Worker
from genx.errors import ArgumentError, GenxError

LOCAL = "local"
_ADDRESS_VARIABLE = "RAY_ADDRESS"
_NEEDED = ("ray", "pyarrow", "pandas")
# Read by Ray when it is imported and by what it starts. Its C++ part writes to stderr itself, and a Ray that genx
# starts shall not report to its makers.
_ENVIRONMENT = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_ANSWER = 10.0
_STDERR = 2


def check_ray_is_there() -> None:
    """Refuse what needs Ray Data where it is not installed.

    Raises:
        ArgumentError: it is not.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ArgumentError("{ray} needs {missing}; pip install 'genx[ray]'", missing=" and ".join(missing))


@contextmanager
def silenced() -> Iterator[None]:
    """What Ray prints goes nowhere; genx's own streams are not those that `sys` names."""
    with redirect_stdout(_nowhere()), redirect_stderr(_nowhere()):
        yield


@cache
def _nowhere() -> TextIO:
    """Open until the end: Ray's handlers of logs and of crashes keep the stream that they have found."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))


@contextmanager
def _descriptor_silenced(descriptor: int) -> Iterator[None]:
    """What Ray's C++ part says goes nowhere: it knows descriptors only, and at first no log level."""
    before = os.dup(descriptor)
    os.dup2(_nowhere().fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)


@dataclass(frozen=True)
class Share:
    """What one worker takes of a machine, how many fit into the cluster, and at most into one machine."""

    cpus: int
    gpus: int
    workers: int
    most_on_a_machine: int


def share_out(machines: Iterable[dict[str, float]], *, on_gpus: bool, threads: int | None) -> Share:
    """One worker a GPU, or else one for every `threads` CPUs, by default as many as the smallest machine has.

    Args:
        machines: what each has: `CPU` and `GPU`, as Ray says.
        on_gpus: whether workers need one.
        threads: CPU threads of a worker.

    Raises:
        GenxError: there is no room for any.
    """
    counts = [int(machine.get("GPU" if on_gpus else "CPU", 0)) for machine in machines]
    with_some = [count for count in counts if count]
    each = 1 if on_gpus else threads or min(with_some, default=1)
    fitting = [count // each for count in with_some]
    if not any(fitting):
        wanted = "a GPU" if on_gpus else f"{each} CPUs for a worker" if each > 1 else "a CPU"
        raise GenxError(f"no machine of the Ray cluster has {wanted}; --device and --threads say what workers need")
    return Share(0 if on_gpus else each, int(on_gpus), sum(fitting), max(fitting))


class RayCluster:
    """A connection to a cluster, or a Ray of its own on this machine; calling it generates blocks of jobs there."""

    def __init__(self, address: str, work: Work) -> None:
        """
        Args:
            address: HOST:PORT of a cluster of which this machine is one, or `auto`; empty: what RAY_ADDRESS says, or a
                Ray of its own.
            work: what workers do.
        """
        self._address = address or os.environ.get(_ADDRESS_VARIABLE) or LOCAL
        self._work = work

    def __enter__(self) -> "RayCluster":
        """
        Raises:
            GenxError: there is no such cluster, or Ray cannot be started.
        """
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.raiseExceptions = False  # threads of Ray's outlive the connection, and log that it has gone
        own: dict[str, Any] = {"include_dashboard": False} if self._address == LOCAL else {}
        try:
            _knock(self._address)
            ray = _ray("ray")
            with _descriptor_silenced(_STDERR):
                ray.init(self._address, log_to_driver=False, logging_level="CRITICAL", **own)
        except (RuntimeError, ValueError, OSError, OverflowError) as error:
            if self._address == LOCAL:
                raise GenxError(f"Ray cannot be started on this machine: {_first_line(error)}") from error
            raise GenxError(
                f"no Ray cluster can be reached at {self._address} from this machine: {_first_line(error)}; give "
                "HOST:PORT of one that this machine is part of, or --ray alone for a Ray of its own"
            ) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _ray("ray").shutdown()

    def __call__(self, blocks: Sequence[bytes]) -> Iterator[Report | None]:
        """Have blocks of jobs generated by a pool of workers, each with a model; None is a moment without a report.

        Raises:
            GenxError: the workers cannot be kept alive.
        """
        dataset = self._dataset(blocks)
        news: SimpleQueue[Report | Exception | None] = SimpleQueue()

        def fetch() -> None:
            try:
                for rows in dataset.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
                    for report in rows["report"]:
                        news.put(pickle.loads(report))
                news.put(None)
            except Exception as error:
                news.put(error)

        # Ray Data waits for the next rows however long it takes, and Ctrl-C shall not.
        threading.Thread(target=fetch, daemon=True).start()
        while True:
            try:
                new = news.get(timeout=_SECONDS_BETWEEN_LOOKS)
            except Empty:
                yield None
                continue
            if new is None:
                return
            if isinstance(new, Exception):
                raise GenxError(f"the Ray cluster gave up: {_first_line(new)}") from new
            yield new

    def _dataset(self, blocks: Sequence[bytes]) -> Any:
        ray = _ray("ray")
        data = _ray("ray.data")
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # byte: hand on each report as it comes
        context.max_errored_blocks = -1  # rows that do not come back are tried again
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        share = share_out(machines, on_gpus=self._work.arithmetic.device == "cuda", threads=self._work.threads)
        beside = 1 if share.gpus else share.most_on_a_machine
        return data.from_items([{"jobs": block} for block in blocks], override_num_blocks=len(blocks)).map_batches(
            Worker,
            fn_constructor_args=[replace(self._work, workers_beside=beside)],
            batch_size=1,
            batch_format="numpy",
            compute=data.ActorPoolStrategy(size=min(share.workers, len(blocks))),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=-1,
            max_task_retries=0,
        )


def _knock(address: str) -> None:
    """Refuse an address at which nobody listens: Ray would try for minutes, deaf to Ctrl-C.

    Raises:
        OSError: nobody does.
    """
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()


def _ray(module: str) -> Any:
    """Ray's modules take seconds to import, and may be missing."""
    return import_module(module)


def _first_line(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = [line.strip() for line in text.splitlines()]
    return next(filter(None, lines), type(error).__name__).rstrip(".")
