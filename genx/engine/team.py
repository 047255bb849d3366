"""Several processes that compute one model, led by this one, which alone reads, prints and decides when to stop.

The others take the same steps with the same arguments; logits, and so the tokens chosen, are equal in all of them.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from types import TracebackType
from typing import TYPE_CHECKING

from genx.engine.arithmetic import Arithmetic
from genx.engine.follower import LEAVE, LOADED, NEXT, READY, Post, Task, follow
from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.errors import GenxError

if TYPE_CHECKING:
    from genx.checkpoint.loading import Progress
    from genx.core.base_model import BaseModel
    from genx.core.generation import GenerationEvent
    from genx.engine.loading import LoadedModel

_ENDING_S = 5  # that followers have to end by themselves
_NOTICING_S = 10  # in which a sum that waits for a process that has ended fails by itself, where it ever does


class Team:
    """A `with` block in which several processes share a model; at its end, however it comes, the others have ended.

    They start with the block, so that they are ready when it comes to the model.
    """

    def __init__(self, processes: int, on_hang: Callable[[GenxError], None]) -> None:
        """
        Args:
            processes: how many, this one included.
            on_hang: called in another thread when a process has ended and this one still waits for it; must end it.
        """
        self._processes = processes
        self._on_hang = on_hang
        self._followers: list[Follower] = []
        self._group = ExitStack()
        self._is_over = threading.Event()
        # Where a sum has failed, torch's own warnings at the end of the process say no more than the error does.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def __enter__(self) -> "Team":
        with _without_ctrl_c():
            self._followers += [Follower(rank, self._processes) for rank in range(1, self._processes)]
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        for follower in self._followers:
            follower.send(None)
        if kind is None:
            self._group.close()  # which processes do together
        for follower in self._followers:
            follower.end(_ENDING_S if kind is None else 0)
        self._group.close()

    def load(
        self, path: str | os.PathLike[str], arithmetic: Arithmetic, threads: int | None, progress: "Progress | None"
    ) -> "LoadedModel":
        """Load the model, a part of it in each process.

        Args:
            path: as for `genx.load_model`.
            arithmetic: with torch's operations, and weights that are not quantised.
            threads: CPU threads of each process; None divides torch's choice.
            progress: as for `genx.load_model`, of this process.

        Raises:
            ArgumentError: the model, or this machine, cannot be divided so.
            CheckpointError: the folder does not hold a model that genx knows, whole.
            GenxError: another process could not load its part.
        """
        import torch

        from genx.checkpoint import resolve_model
        from genx.checkpoint.opening import open_checkpoint
        from genx.engine.loading import load_to_run
        from genx.parallel.divide import check_divisible, own_nbytes
        from genx.parallel.group import check_processes, joined, meeting_place

        check_processes(self._processes, arithmetic.device)
        whole = open_checkpoint(resolve_model(path)).model
        check_divisible(whole, self._processes)
        if threads is None and arithmetic.device == "cpu":
            threads = max(torch.get_num_threads() // self._processes, 1)
        if threads is not None:
            torch.set_num_threads(threads)
        place = self._group.enter_context(meeting_place())
        post = Post(0, self._processes, place, os.fspath(path), arithmetic.dtype, arithmetic.device, threads)
        for rank, follower in enumerate(self._followers, start=1):
            follower.send(replace(post, rank=rank))
        self._await(READY)
        mesh = self._group.enter_context(joined(0, self._processes, arithmetic.device, place))
        loaded = load_to_run(path, arithmetic, progress=progress, mesh=mesh)
        self._await(LOADED)
        return replace(
            loaded,
            weight_bytes=own_nbytes(loaded.model),
            parameters=sum(parameter.numel() for parameter in whole.parameters()),
            steps=self.steps,
        )

    def steps(
        self, model: "BaseModel", prompt: Prompt, settings: GenerationSettings, stop_token_ids: frozenset[int]
    ) -> "Iterator[GenerationEvent]":
        """As `genx.engine.stream.generation_steps`, taken by all processes.

        Raises:
            GenxError: another process has ended.
        """
        from genx.engine.stream import generation_steps

        events = generation_steps(model, prompt, settings, stop_token_ids)
        self._tell(Task(prompt, settings, stop_token_ids))
        try:
            while True:
                self._tell(NEXT)
                event = next(events, None)
                if event is None:
                    return
                yield event
        except RuntimeError as error:  # what gloo raises where a process has ended, and others for their own reasons
            loss = self._loss(wait_s=1)
            if loss is None:
                raise
            raise loss from error
        finally:
            for follower in self._followers:
                follower.send(LEAVE)

    def _await(self, message: str) -> None:
        for follower in self._followers:
            follower.wait_for(message)

    def _tell(self, message: object) -> None:
        for follower in self._followers:
            if not follower.send(message):
                raise self._loss(wait_s=1) or GenxError("a process of several does not listen any more")

    def _loss(self, wait_s: float) -> GenxError | None:
        return next((loss for follower in self._followers if (loss := follower.loss(wait_s))), None)

    def _watch(self) -> None:
        """Notice that a process has ended while this one waits for it: not every backend does."""
        wait([follower.sentinel for follower in self._followers])
        if not self._is_over.wait(_NOTICING_S):
            self._on_hang(self._loss(wait_s=1) or GenxError("a process of several has ended"))


class Follower:
    """One of the other processes, seen from the one that leads."""

    def __init__(self, rank: int, processes: int) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._name = f"process {rank + 1} of {processes}"
        self._connection, other_end = spawning.Pipe()
        self._process = spawning.Process(target=follow, args=(other_end,), daemon=True)
        self._process.start()
        other_end.close()

    @property
    def sentinel(self) -> int:
        """What `multiprocessing.connection.wait` takes for its end."""
        return self._process.sentinel

    def send(self, message: object) -> bool:
        """Whether it could be sent."""
        try:
            self._connection.send(message)
        except OSError:
            return False
        return True

    def wait_for(self, message: str) -> None:
        """Wait until it says that.

        Raises:
            GenxError: it says something else, or ends.
        """
        try:
            said = self._connection.recv()
        except (EOFError, OSError):
            raise self.loss(_ENDING_S) or GenxError(f"{self._name} does not answer") from None
        if said != message:
            raise GenxError(f"{self._name}: {said}")

    def loss(self, wait_s: float) -> GenxError | None:
        """How it has ended; None if it has not."""
        self._process.join(wait_s)
        code = self._process.exitcode
        if code is None:
            return None
        said = ""
        with suppress(EOFError, OSError):
            while self._connection.poll():
                said = f": {self._connection.recv()}"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return GenxError(f"{self._name} has ended with {how}{said}")

    def end(self, wait_s: float) -> None:
        """Wait for its end so long, then end it."""
        self._process.join(wait_s)
        self._process.kill()
        self._process.join()
        self._connection.close()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that are started here never see Ctrl-C, not even while they start; this one sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
