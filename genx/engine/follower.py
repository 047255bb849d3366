"""A process that computes a model together with the one that leads it, and says nothing but to that one."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.errors import ExitCode, GenxError


@dataclass(frozen=True)
class Post:
    """What a process of several is to load, and which one it is.

    Attributes:
        rank: its number; 0 leads.
        processes: how many there are.
        place: by which file they find each other.
        path: the model.
        dtype: see `genx.load_model`.
        device: cpu or cuda.
        threads: CPU threads of each.
    """

    rank: int
    processes: int
    place: Path
    path: str
    dtype: str | None
    device: str
    threads: int | None


@dataclass(frozen=True)
class Task:
    """A text to generate: the arguments of `genx.engine.stream.generation_steps`."""

    prompt: Prompt
    settings: GenerationSettings
    stop_token_ids: frozenset[int]


# What the leader sends after a task: take one step of it, or leave it.
NEXT, LEAVE = "next", "leave"
# What it is told: ready to meet the others, model loaded. Anything else is why a follower ends.
READY, LOADED = "ready", "loaded"


def follow(leader: Connection) -> None:
    """Load a part of the model, then take each step that the leader takes, until it goes away.

    Args:
        leader: sends a post, then tasks and steps; its end, by whatever cause, ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's, who then leaves the task
    if os.environ.get("GENX_DEBUG") != "1":
        _be_silent()
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(leader, messages), daemon=True).start()
    try:
        _serve(leader, messages)
    except Exception as error:
        leader.send(" ".join(str(error).split()) or type(error).__name__)
        raise SystemExit(ExitCode.FAILED) from error


def _serve(leader: Connection, messages: "SimpleQueue[Any]") -> None:
    import torch  # while the leader does the same, and reads the prompt

    from genx.checkpoint import load_model
    from genx.engine.stream import generation_steps
    from genx.parallel.group import joined

    post = messages.get()
    if post is None:
        return
    if post.threads is not None:
        torch.set_num_threads(post.threads)
    leader.send(READY)
    with joined(post.rank, post.processes, post.device, post.place) as mesh:
        model = load_model(post.path, dtype=post.dtype, device=post.device, mesh=mesh)
        leader.send(LOADED)
        while isinstance(task := messages.get(), Task):
            steps = generation_steps(model, task.prompt, task.settings, task.stop_token_ids)
            _take(steps, messages)


def _take(steps: Iterator[object], messages: "SimpleQueue[Any]") -> None:
    while messages.get() == NEXT:
        with suppress(GenxError):  # the leader has it too, and says it
            next(steps, None)


def _listen(leader: Connection, messages: "SimpleQueue[Any]") -> None:
    """Pass messages on, in a thread: who waits in a sum over processes would not notice that the leader is gone."""
    while True:
        try:
            message = leader.recv()
        except (EOFError, OSError):
            os._exit(ExitCode.FAILED)
        messages.put(message)
        if message is None:
            return


def _be_silent() -> None:
    """What libraries print here is nobody's text and no error of the run."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
