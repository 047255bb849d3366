"""`genx run -i ... --ray`: the rows of the local run, from a cluster of two machines, whatever dies on the way."""

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genx.cli.ray_option import with_ray_value
from genx.engine.rows import ray_cluster
from tests.cli.rows import answers, run_rows, write_babbler, write_jsonl

FLAGS = ("-n", "12", "--top-k", "30")
COUNT = 120
# One group: the tests of a file share a cluster, and two clusters at once would share two cores.
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("babbler"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows: list[object] = [
        {"prompt": "x" * (1 + place * 7 % 30), "max_new_tokens": (1, 3, 20, 60)[place % 4]} for place in range(COUNT)
    ]
    rows[3], rows[11], rows[40] = {"prompt": ""}, {"id": "eleven", "prompt": "é\u2028", "note": 'a "b"'}, {"prompt": 4}
    return write_jsonl(tmp_path_factory.mktemp("prompts") / "p.jsonl", rows)


@pytest.fixture(scope="module")
def whole(babbler: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of the local run."""
    out = tmp_path_factory.mktemp("whole") / "a.jsonl"
    assert run_rows(babbler, "-i", prompts, "-o", out, *FLAGS).status == 3
    return out


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two machines that have one CPU each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        machine = {"num_cpus": 1, "object_store_memory": 80 << 20}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=machine)
        cluster.add_node(**machine)
        yield str(cluster.address)
        cluster.shutdown()


def untimed(file: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "timings"} for row in answers(file)]


class Running:
    """A run in a process, since Ray puts signal handlers, threads and loggers into its own."""

    def __init__(self, *arguments: str | Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "genx", "run", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def send_when_it_grows(self, signal_number: int, file: Path, to: Callable[[], int] | None = None) -> None:
        """Send a signal to the process, or to another one, once a row is in the file that was not there before."""
        before = file.stat().st_size if file.exists() else 0
        while not file.exists() or file.stat().st_size <= before:
            if self.process.poll() is not None:
                pytest.fail(f"ended before it wrote a row: {self.ended()}")
            time.sleep(0.02)
        os.kill(to() if to else self.process.pid, signal_number)

    def ended(self) -> tuple[int, str, str]:
        """The exit code, stdout, and stderr without the lines that tell how far it is."""
        out, err = self.process.communicate(timeout=240)
        said = [line for line in err.decode().splitlines(keepends=True) if not re.match(r"genx: [\d,]+ of ", line)]
        return self.process.returncode, out.decode(), "".join(said)


def workers() -> list[int]:
    """Processes that have a model or load one."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::MapWorker(MapBatches(Worker))" in line]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-i p --ray", "-i p --ray="),
        ("--ray -i p", "--ray= -i p"),
        ("--ray 10.0.0.1:6379 -i p", "--ray=10.0.0.1:6379 -i p"),
        ("--ray [::1]:6379", "--ray=[::1]:6379"),
        ("--ray auto", "--ray=auto"),
        ("--ray=auto hello", "--ray=auto hello"),
        ("--ray hello", "--ray= hello"),
        ("-- --ray auto", "-- --ray auto"),
    ],
)
def test_an_address_may_follow(given: str, meant: str) -> None:
    assert with_ray_value(given.split()) == meant.split()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--ray", "hello"], "PROMPT and --input are both given; allowed: one of them; drop the other"),
        (["--ray=hello"], "--ray is 'hello'; allowed: HOST:PORT of a cluster, auto, local, or nothing"),
        (["--ray", "--count"], "--count and --ray are both given; it is for this machine alone; drop one"),
        (
            ["--ray", "--verify-batch", "2"],
            "--verify-batch and --ray are both given; it is for this machine alone; drop one",
        ),
        (["--ray"], "--ray needs ray and pandas; pip install 'genx[ray]'"),
    ],
)
def test_what_cannot_be_is_refused(
    babbler: Path, prompts: Path, flags: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: "found" if name == "pyarrow" else None)
    result = run_rows(babbler, "-i", prompts, *flags)
    assert (result.status, result.stdout, result.stderr) == (2, b"", f"genx: error: {why}\n")


def test_without_a_file_of_prompts_it_is_refused(babbler: Path) -> None:
    result = run_rows(babbler, "--ray", "hello")
    assert (result.status, result.stderr) == (
        2,
        "genx: error: --ray is for files of prompts, and none is given; give one with --input\n",
    )


def test_a_cluster_that_is_not_there_is_told_and_no_file_made(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    result = run_rows(babbler, "-i", prompts, "-o", tmp_path / "a.jsonl", "--ray", "127.0.0.1:1")
    assert (result.status, list(tmp_path.iterdir())) == (1, [])
    assert re.fullmatch(
        r"genx: error: no Ray cluster can be reached at 127\.0\.0\.1:1 from this machine: .*; give HOST:PORT of .*\n",
        result.stderr,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes are listed otherwise")
def test_a_torn_file_is_gone_on_with_and_the_rows_of_a_worker_that_dies_are_done_again(
    address: str, babbler: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.jsonl"
    content = whole.read_bytes()
    out.write_bytes(content[: len(content) // 4])
    kept = content[: len(content) // 4].count(b"\n")
    run = Running("-m", babbler, "-i", prompts, "-o", out, *FLAGS, "-b", "1", "--resume", "--ray", address)
    run.send_when_it_grows(signal.SIGKILL, out, to=lambda: workers()[0])
    status, printed, said = run.ended()
    assert (status, printed) == (3, "")
    assert re.fullmatch(
        rf"genx: {COUNT} rows: {COUNT - kept} done now, {kept} kept from before, 2 failed, "
        r"[\d,]+ prompt and [\d,]+ new tokens in .*, .* tokens/s\n",
        said,
    )
    assert untimed(out) == untimed(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.slow
def test_a_driver_is_killed_and_another_goes_on(
    address: str, babbler: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.jsonl"
    arguments: list[str | Path] = ["-m", babbler, "-i", prompts, "-o", out, *FLAGS, "--ray", address]
    first = Running(*arguments, "-b", "2")
    first.send_when_it_grows(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL, out)
    first.ended()
    done = len(answers_of(out))
    assert 0 < done < COUNT
    status, printed, said = Running(*arguments, "-b", "5", "--resume").ended()
    assert (status, printed) == (3, "")
    assert int(re.findall(r"([\d,]+) kept from before", said)[0]) >= done
    assert untimed(out) == untimed(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def answers_of(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_a_ray_of_its_own_is_quiet_and_goes_at_ctrl_c(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "a.jsonl"
    before = set(workers())
    run = Running("-m", babbler, "-i", prompts, "-o", out, *FLAGS, "-b", "1", "--ray", RAY_ADDRESS="local")
    started: list[int] = []

    def look() -> int:
        started.extend(set(workers()) - before)
        return run.process.pid

    run.send_when_it_grows(signal.SIGINT, out, to=look)
    status, printed, said = run.ended()
    assert (status, printed) == (130, "")
    assert re.fullmatch(
        r"genx: [\d,]+ rows?: .* tokens in .*\ngenx: stopped before the last row; --resume goes on from here\n", said
    )
    assert started
    assert not set(started) & set(workers())
    assert 0 < len(answers_of(out)) < COUNT


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-b 1", "-b 3 --samples 2", "-b 17 --unordered", "--format csv", ""])
def test_the_rows_are_those_of_the_local_run(
    address: str, babbler: Path, prompts: Path, tmp_path: Path, flags: str
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    arguments: list[str | Path] = ["-i", prompts, *FLAGS, *flags.split()]
    assert run_rows(babbler, *arguments, "-o", here).status == 3
    status, printed, said = Running("-m", babbler, *arguments, "-o", there, "--ray", RAY_ADDRESS=address).ended()
    assert (status, printed, said.count("\n")) == (3, "", 1)
    if "csv" in flags:
        tables = [list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))) for file in (here, there)]
        for row in (*tables[0], *tables[1]):
            for name in ("ttft_s", "prefill_tps", "decode_tps"):
                del row[name]
        assert tables[0] == tables[1]
        return
    rows = [untimed(file) for file in (here, there)]
    if "--unordered" in flags:
        rows = [sorted(found, key=lambda row: row["row"]) for found in rows]
    assert rows[0] == rows[1]


def test_stdout_has_rows_and_nothing_else(
    address: str, babbler: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    status, printed, said = Running("-m", babbler, "-i", prompts, *FLAGS, "-q", "--ray", address).ended()
    (tmp_path / "a.jsonl").write_text(printed, encoding="utf-8")
    assert (status, said) == (3, "")
    assert untimed(tmp_path / "a.jsonl") == untimed(whole)
