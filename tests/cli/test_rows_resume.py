"""Nothing that is done is lost: runs that are killed, torn, resumed, retried and refused."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genx.engine.rows.lock import locked
from genx.engine.rows.target import Target
from genx.errors import UsageError
from tests.cli.rows import answers, run_rows, write_babbler, write_jsonl

FLAGS = ("-n", "12", "--top-k", "30", "-b", "4")


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("babbler"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(2)
    rows: list[object] = [
        {"prompt": "x" * rng.randint(1, 30), "max_new_tokens": rng.choice([1, 3, 20, 60])} for _ in range(24)
    ]
    rows[3], rows[11] = {"prompt": ""}, {"id": "eleven", "prompt": "é\u2028", "note": 'a, "b"\n'}
    return write_jsonl(tmp_path_factory.mktemp("prompts") / "p.jsonl", rows)


@pytest.fixture(scope="module")
def whole(babbler: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of answers of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "a.jsonl"
    assert run_rows(babbler, "-i", prompts, "-o", out, *FLAGS).status == 3
    assert [path.name for path in out.parent.iterdir()] == ["a.jsonl"]
    return out.read_bytes()


def test_rows_stand_in_input_order_or_as_they_come(babbler: Path, prompts: Path, whole: bytes, tmp_path: Path) -> None:
    assert [json.loads(line)["row"] for line in whole.splitlines()] == list(range(1, 25))
    run_rows(babbler, "-i", prompts, "-o", tmp_path / "a.jsonl", *FLAGS, "--unordered")
    unordered = (tmp_path / "a.jsonl").read_bytes().splitlines()
    assert unordered != whole.splitlines()
    assert sorted(unordered) == sorted(whole.splitlines())


def test_an_existing_file_is_refused_and_left_alone(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    out.write_bytes(b"precious")
    result = run_rows(babbler, "-i", prompts, "-o", out)
    assert (result.status, out.read_bytes()) == (2, b"precious")
    assert result.stderr == f"genx: error: --output {out} exists; --resume goes on with it, --overwrite starts afresh\n"
    result = run_rows(babbler, "-i", prompts, "-o", out, "--resume")
    assert (result.status, out.read_bytes()) == (2, b"precious")  # not the beginning of a torn row
    result = run_rows(babbler, "-i", prompts, "-o", out, "--resume", "--format", "csv")
    assert (result.status, out.read_bytes()) == (2, b"precious")


@pytest.mark.parametrize("flag", ["--resume", "--overwrite", "--resume --unordered"])
def test_a_file_that_another_run_writes_is_refused(
    babbler: Path, prompts: Path, whole: bytes, tmp_path: Path, flag: str
) -> None:
    out = tmp_path / "a.jsonl"
    out.write_bytes(whole[:100])
    arguments = ["-i", prompts, "-o", out, *FLAGS, *flag.split()]
    with locked(tmp_path / "a.jsonl.lock"):
        result = run_rows(babbler, *arguments)
    assert (result.status, out.read_bytes()) == (2, whole[:100])
    assert result.stderr == (
        f"genx: error: --output {out} is being written by another run; wait for it, or give another file\n"
    )
    assert run_rows(babbler, *arguments).status == 3  # it has ended
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_file_that_another_run_has_just_written_is_no_new_one(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    """Both runs found no file at their start."""
    out = tmp_path / "a.jsonl"
    target = Target(out)
    target.check(may_exist=False)
    run_rows(babbler, "-i", prompts, "-o", out, *FLAGS)
    with pytest.raises(UsageError, match="exists"), target.claimed(may_exist=False):
        pass


def test_overwrite_starts_afresh(babbler: Path, prompts: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    out.write_bytes(b"old\n" * 100_000)
    run_rows(babbler, "-i", prompts, "-o", out, *FLAGS, "--overwrite")
    assert out.read_bytes() == whole


def test_a_file_cut_anywhere_is_repaired(babbler: Path, prompts: Path, whole: bytes, tmp_path: Path) -> None:
    """A torn last line, and no file at all; what is done stays byte for byte."""
    rng = random.Random(3)
    for cut in (0, 1, len(whole) - 1, len(whole), *(rng.randrange(len(whole)) for _ in range(6))):
        out = tmp_path / f"{cut}.jsonl"
        out.write_bytes(whole[:cut])
        run_rows(babbler, "-i", prompts, "-o", out, *FLAGS[:-1], str(rng.randint(1, 9)), "--resume")
        assert out.read_bytes() == whole, cut
    assert run_rows(babbler, "-i", prompts, "-o", tmp_path / "new.jsonl", *FLAGS, "--resume").status == 3
    assert (tmp_path / "new.jsonl").read_bytes() == whole


def test_rows_missing_in_the_middle_are_put_in_their_place(
    babbler: Path, prompts: Path, whole: bytes, tmp_path: Path
) -> None:
    lines = whole.splitlines(keepends=True)
    for flags in ([], ["--unordered"]):
        out = tmp_path / f"{len(flags)}.jsonl"
        out.write_bytes(b"".join(lines[:5] + lines[9:15] + lines[18:]))
        run_rows(babbler, "-i", prompts, "-o", out, *FLAGS, "--resume", *flags)
        assert sorted(out.read_bytes().splitlines(keepends=True)) == sorted(lines)
        assert (out.read_bytes() == whole) is not bool(flags)


def test_parked_rows_are_taken_up(babbler: Path, prompts: Path, whole: bytes, tmp_path: Path) -> None:
    lines = whole.splitlines(keepends=True)
    out, partial = tmp_path / "a.jsonl", tmp_path / "a.jsonl.partial"
    out.write_bytes(b"".join(lines[:2]))
    partial.write_bytes(lines[1] + lines[7] + lines[4] + lines[22][:-9])
    result = run_rows(babbler, "-i", prompts, "-o", out, *FLAGS, "--resume")
    assert out.read_bytes() == whole
    assert not partial.exists()
    assert "24 rows: 20 done now, 4 kept from before, 1 failed" in result.stderr


def test_csv_resumes_too(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    run_rows(babbler, "-i", prompts, "-o", tmp_path / "a.csv", *FLAGS)
    whole = (tmp_path / "a.csv").read_bytes()
    rng = random.Random(4)
    for cut in (0, 30, *(rng.randrange(len(whole)) for _ in range(4))):
        (tmp_path / "b.csv").write_bytes(whole[:cut])
        run_rows(babbler, "-i", prompts, "-o", tmp_path / "b.csv", *FLAGS, "--resume")
        assert (tmp_path / "b.csv").read_bytes() == whole, cut


def test_stdin_resumes_too(babbler: Path, prompts: Path, whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(whole[: len(whole) // 2])
    run_rows(babbler, "-i", "-", "-o", tmp_path / "a.jsonl", *FLAGS, "--resume", stdin=prompts.read_bytes())
    assert (tmp_path / "a.jsonl").read_bytes() == whole


def test_rows_added_to_the_input_are_added_to_the_answers(babbler: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "a"}, {"prompt": "b"}]
    out = tmp_path / "a.jsonl"
    run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows[:2]), "-o", out)
    before = out.read_bytes()
    run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows), "-o", out, "--resume")
    assert out.read_bytes().startswith(before)
    # NousResearch/hermes-agent#86523: equal prompts are rows of their own, and none is dropped.
    assert [row["row"] for row in answers(out)] == [1, 2, 3]


def test_rows_with_ids_may_move(babbler: Path, tmp_path: Path) -> None:
    """NousResearch/hermes-agent#95322: keys by index drift when rows are inserted."""
    rows = [{"id": name, "prompt": name} for name in "abcd"]
    out = tmp_path / "a.jsonl"
    run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows[1:3]), "-o", out, *FLAGS)
    run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows), "-o", out, *FLAGS, "--resume")
    run_rows(babbler, "-i", tmp_path / "p.jsonl", "-o", tmp_path / "b.jsonl", *FLAGS)
    assert [row["id"] for row in answers(out)] == list("abcd")
    assert [row["text"] for row in answers(out)] == [row["text"] for row in answers(tmp_path / "b.jsonl")]


@pytest.mark.parametrize(
    ("rows", "flags", "why"),
    [
        (["a", "c"], [], "row 2 was made from another prompt"),
        (["z", "a", "b"], [], "row 1 was made from another prompt"),
        (["a"], [], "row 2 is no row of the input"),
        (["a", "b"], ["-n", "3"], "row 1 was made under other settings or by another model"),
        (["a", "b"], ["--seed", "1"], "row 1 was made under other settings or by another model"),
        (["a", "b"], ["--samples", "2"], ""),
        (["a", "b"], ["--dtype", "bfloat16"], "row 1 was made under other settings or by another model"),
        (["a", "b"], ["--truncate", "left"], ""),
        (["a", "b"], ["--kv-memory", "1GiB", "--threads", "1"], ""),
    ],
)
def test_results_of_other_runs_are_never_mixed(
    babbler: Path, tmp_path: Path, rows: list[str], flags: list[str], why: str
) -> None:
    out = tmp_path / "a.jsonl"
    run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", [{"prompt": p} for p in "ab"]), "-o", out, "--top-k", "3")
    before = out.read_bytes()
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": p} for p in rows])
    result = run_rows(babbler, "-i", tmp_path / "p.jsonl", "-o", out, "--top-k", "3", "--resume", *flags)
    if why:
        assert (result.status, out.read_bytes()) == (2, before)
        assert result.stderr.startswith(f"genx: error: {out}: {why}")
    else:
        assert (result.status, set(before.splitlines()) <= set(out.read_bytes().splitlines())) == (0, True)


def test_another_model_is_refused(babbler: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    run_rows(babbler, "-i", "-", "-o", out, stdin=b"a\n")
    other = write_babbler(tmp_path / "other")
    weights = (other / "model.safetensors").read_bytes()
    (other / "model.safetensors").write_bytes(weights[:-4] + b"\0\0\0\0")
    result = run_rows(other, "-i", "-", "-o", out, "--resume", stdin=b"a\n")
    assert (result.status, "row 1 was made under other settings or by another model" in result.stderr) == (2, True)
    same = write_babbler(tmp_path / "same")  # elsewhere, but the same
    assert run_rows(same, "-i", "-", "-o", out, "--resume", stdin=b"a\n").status == 0


def test_retry_errors_runs_failed_rows_again(tmp_path: Path) -> None:
    model = write_babbler(tmp_path / "m")
    rows = [{"prompt": "a"}, {"prompt": "b" * 70}, {"prompt": "c"}]
    source, out = write_jsonl(tmp_path / "p.jsonl", rows), tmp_path / "a.jsonl"
    assert run_rows(model, "-i", source, "-o", out, "-n", "4").status == 3
    first = out.read_bytes().splitlines()
    assert run_rows(model, "-i", source, "-o", out, "-n", "4", "--resume").status == 3
    assert out.read_bytes().splitlines() == first
    result = run_rows(model, "-i", source, "-o", out, "-n", "4", "--resume", "--retry-errors", "--truncate", "left")
    second = out.read_bytes().splitlines()
    assert result.status == 0
    assert (second[0], second[2]) == (first[0], first[2])
    assert (json.loads(second[1])["row"], json.loads(second[1])["new_tokens"]) == (2, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "m", "p.jsonl"]


def test_a_foreign_file_is_no_file_of_answers(babbler: Path, prompts: Path, tmp_path: Path) -> None:
    for content in (b"{}\n", b"text\n", b"[]\n", b'{"id": null, "row": 1}\n'):
        (tmp_path / "a.jsonl").write_bytes(content)
        result = run_rows(babbler, "-i", prompts, "-o", tmp_path / "a.jsonl", "--resume")
        assert (result.status, (tmp_path / "a.jsonl").read_bytes()) == (2, content)
        assert "line 1 of" in result.stderr
        assert "is nothing that genx wrote; give another -o, or --overwrite" in result.stderr


# Imports once, then forks for each run: a run begins in milliseconds, and its process can be killed like any other.
_FORKING = """
import os, sys, json, signal, time
import torch
torch.set_num_threads(1)
from tests.cli.rows import run_rows
import genx.cli.rows, genx.engine.rows.run, genx.tokenization
for line in sys.stdin:
    seconds, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        os._exit(run_rows(*arguments).status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # nothing happens to a child that has ended and was not waited for
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
Start = Callable[..., int]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Do a run in a process of its own, which is killed after some seconds, if any; give its exit code."""
    if not hasattr(os, "fork"):
        pytest.skip("processes are forked")
    with subprocess.Popen(
        [sys.executable, "-c", _FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def run(seconds: float | None, *arguments: object) -> int:
            stdin.write(json.dumps([seconds, [str(argument) for argument in arguments]]) + "\n")
            stdin.flush()
            return int(stdout.readline())

        yield run
        stdin.close()


def test_of_two_runs_at_once_one_writes(
    start: Start, babbler: Path, prompts: Path, whole: bytes, tmp_path: Path
) -> None:
    """And one that is killed leaves no lock, though the file of it."""
    out = tmp_path / "a.jsonl"
    arguments = [babbler, "-i", prompts, "-o", out, *FLAGS, "--resume"]
    with locked(tmp_path / "a.jsonl.lock"):
        assert start(None, *arguments) == 2
        assert start(None, *arguments, "--count") != 2  # which writes nothing
        assert not out.exists()
    (tmp_path / "a.jsonl.lock").touch()
    assert start(None, *arguments) == 3
    _check(out, whole, [])


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("flags", [[], ["--unordered"]], ids=["ordered", "unordered"])
def test_killed_at_any_moment_and_resumed_the_file_is_that_of_an_undisturbed_run(
    start: Start, babbler: Path, prompts: Path, whole: bytes, tmp_path: Path, kills: int, flags: list[str]
) -> None:
    rng = random.Random(kills)
    out = tmp_path / "a.jsonl"
    common = [babbler, "-i", prompts, "-o", out, *FLAGS[:-1]]
    landed = 0
    longest = 0.4
    while landed < kills:
        if start(rng.uniform(0, longest), *common, rng.randint(1, 9), "--resume", *flags) == -signal.SIGKILL:
            landed += 1
            continue
        _check(out, whole, flags)
        out.unlink()
        longest /= 1.5  # faster than expected
    assert start(None, *common, 4, "--resume", *flags) == 3
    _check(out, whole, flags)


def _check(out: Path, whole: bytes, flags: list[str]) -> None:
    content = out.read_bytes()
    if flags:
        assert sorted(content.splitlines()) == sorted(whole.splitlines())
    else:
        assert content == whole
    assert [path.name for path in out.parent.iterdir()] == ["a.jsonl"]
