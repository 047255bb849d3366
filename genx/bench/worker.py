"""The process of one point: it loads, then runs once for each line that asks for it, then ends with its stdin.

The first line of stdin is the job; its answer, and each run's, is a line of JSON on what was stdout. Whatever libraries
print goes to stderr.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from genx.bench.engines import open_engine
from genx.bench.jobs import Engine, Job, Survey
from genx.engine.arithmetic import choose_arithmetic
from genx.engine.device import choose_device
from genx.errors import GenxError

Reply = Callable[[dict[str, Any]], None]

_NO_MEMORY = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory")


def main() -> None:
    """Serve one job over stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes stdin
    channel = _take_stdout()

    def reply(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    serve(sys.stdin, reply)


def serve(requests: Iterable[str], reply: Reply, open_job: Callable[[Job], Engine] = open_engine) -> None:
    """Answer the job in the first request, then each run, until the requests end or one fails.

    Args:
        requests: lines of JSON: first `survey` or a job, then `{"seed": n}`.
        reply: takes each answer.
        open_job: loads the engine of a job.
    """
    lines = iter(requests)
    try:
        first = json.loads(next(lines))
        if "survey" in first:
            reply(_survey(**first["survey"]))
            return
        engine = open_job(Job.from_json(first))
        reply(asdict(engine.loaded()))
        for line in lines:
            reply(asdict(engine.run(json.loads(line)["seed"])))
    except Exception as error:
        reply({"error": describe_failure(error)})


def describe_failure(error: BaseException) -> dict[str, str]:
    """The status and the message of a point that could not be measured."""
    message = " ".join((str(error).splitlines() or [type(error).__name__])[:1])
    if _is_out_of_memory(error):
        return {"status": "oom", "error": message}
    known = isinstance(error, GenxError)
    return {"status": "failed", "error": message if known else f"{type(error).__name__}: {message}"}


def _is_out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _NO_MEMORY):
            return True
        error = error.__cause__
    return False


def _survey(
    model: str, device: str, threads: int | None, dtypes: list[str], quantize: list[str], kernels: str
) -> dict[str, Any]:
    import torch

    from genx.bench.machine import measure_rates
    from genx.checkpoint import open_source, read_config_json
    from genx.models.registry import model_class

    if threads is not None:
        torch.set_num_threads(threads)
    source = read_config_json(Path(model))
    config = model_class(str(source.get("model_type", "absent"))).read_config(source)
    chosen = choose_device(device)
    where = open_source(model)
    choices = [choose_arithmetic(chosen, dtype, how, kernels) for dtype in dtypes for how in quantize]
    held = [choice.held(where, config.dtype) for choice in choices]
    arithmetic = {(choice.dtype or weights, weights): None for choice, weights in zip(choices, held, strict=True)}
    found = Survey(
        device=chosen,
        device_name=torch.cuda.get_device_name(chosen) if chosen.startswith("cuda") else chosen,
        torch=torch.__version__,
        arithmetic=tuple(arithmetic),
        context=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        rates=measure_rates(chosen, tuple({dtype: None for dtype, _ in arithmetic})),
    )
    return asdict(found)


def _take_stdout() -> TextIO:
    """The stream to the parent; file descriptor 1 becomes stderr, so that no library's print can spoil it."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel
