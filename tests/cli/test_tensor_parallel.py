"""genx run --tensor-parallel."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.architectures import make_tiny
from tests.cli.in_process import run_genx
from tests.fixtures.models import successor_head, write_bigram
from tests.fixtures.tokenizers import write_t1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny("llama", tmp_path_factory.mktemp("tensor_parallel")).folder)


def test_the_text_is_that_of_one_process(folder: str) -> None:
    run = ("run", "-m", folder, "--ids", "5,6,7", "-n", "9", "--top-k", "40", "--seed", "3")
    one, two = run_genx(*run), run_genx(*run, "--tensor-parallel", "2", "--explain")
    assert (two.status, two.text) == (0, one.text)
    assert "tensor_parallel: 2 processes, each with a part of weights and cache (flag)\n" in two.stderr
    assert "parameters, context 40 tokens" in two.stderr
    assert "warning" not in two.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tp", "0"), "--tensor-parallel is 0; allowed: a whole number from 1 to 1024"),
        (("--tp", "two"), "--tensor-parallel is 'two'; allowed: a whole number"),
        (
            ("--tp", "4"),
            "--tensor-parallel is 4, and the model's num_attention_heads of 6 cannot be divided so; allowed: 1, 2",
        ),
        (
            ("--tp", "2", "--device", "mps"),
            "--tensor-parallel 2 and --device mps are both given; allowed: one of them, there is one such device",
        ),
        (
            ("--tp", "2", "--quantize", "int8"),
            "--quantize int8 and --tensor-parallel 2 are both given; allowed: one of them, it is for one process",
        ),
        (
            ("--tp", "2", "--kernels", "native"),
            "--kernels native and --tensor-parallel 2 are both given; allowed: one of them, it is for one process",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(folder: str, arguments: tuple[str, ...], message: str) -> None:
    result = run_genx("run", "-m", folder, "--ids", "5", *arguments)
    assert (result.status, result.stdout, result.stderr) == (2, b"", f"genx: error: {message}\n")


def test_files_of_prompts_are_refused(folder: str) -> None:
    result = run_genx("run", "-m", folder, "-i", "rows.txt", "--tensor-parallel", "2")
    message = "genx: error: --input and --tensor-parallel are both given; allowed: one of them, so far\n"
    assert (result.status, result.stderr) == (2, message)


def test_more_processes_than_devices_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    result = run_genx("run", "-m", folder, "--ids", "5", "--device", "cuda", "--tensor-parallel", "2")
    message = "genx: error: --tensor-parallel is 2; allowed: at most 1, a CUDA device for each process\n"
    assert (result.status, result.stderr) == (2, message)


@pytest.mark.parametrize("lacking", ["is_available", "is_backend_available"])
def test_a_torch_without_what_it_takes_is_named(folder: str, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    monkeypatch.setattr(torch.distributed, lacking, lambda *_: False)
    result = run_genx("run", "-m", folder, "--ids", "5", "--tensor-parallel", "2")
    message = (
        f"genx: error: this torch ({torch.__version__}) cannot send tensors between processes on cpu: it is built "
        "without gloo; use a build that has it, or leave out --tensor-parallel\n"
    )
    assert (result.status, result.stderr) == (1, message)


@pytest.fixture
def endless(tmp_path: Path) -> "subprocess.Popen[bytes]":
    """Two processes, with a session of their own, that count through the letters for ever."""
    head = successor_head({ord("z"): ord("a")})
    model = write_bigram(
        write_t1(tmp_path), head, context=100_000, num_attention_heads=2, num_key_value_heads=2, head_dim=2
    )
    return subprocess.Popen(
        [sys.executable, "-m", "genx", "run", "a", "-n", "90000", "-m", str(model), "--tensor-parallel", "2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_all(process: "subprocess.Popen[bytes]", within_s: float = 30) -> None:
    """Wait until no process of the group is left; end those that stay."""
    try:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("a process is left")
    except ProcessLookupError:
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
@pytest.mark.parametrize(
    ("sent", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow)],
)
def test_no_process_is_left(endless: "subprocess.Popen[bytes]", sent: signal.Signals, status: int) -> None:
    assert endless.stdout is not None
    first = endless.stdout.read(40)
    if sent is signal.SIGINT:
        os.killpg(endless.pid, sent)  # Ctrl-C reaches all processes at a terminal
    else:
        endless.send_signal(sent)
    rest, said = endless.communicate(timeout=60)
    assert (endless.returncode, said) == (status, b"")
    wait_for_all(endless)
    letters = b"abcdefghijklmnopqrstuvwxyz"
    text = first + rest
    assert text == (letters * (len(text) // 26 + 2))[1 : len(text) + 1]


@pytest.mark.slow
def test_a_reader_that_has_gone_ends_all_quietly(endless: "subprocess.Popen[bytes]") -> None:
    assert endless.stdout is not None
    assert endless.stderr is not None
    assert endless.stdout.read(1) == b"b"
    endless.stdout.close()
    assert endless.wait(timeout=60) == 0
    assert endless.stderr.read() == b""
    endless.stderr.close()
    wait_for_all(endless)
