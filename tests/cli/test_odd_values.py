"""Values and endings that came up when people tried to break the program."""

import io
import json
from pathlib import Path

import pytest

from tests.cli.in_process import run_genx, run_genx_at_terminal
from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1


@pytest.fixture
def abc(tmp_path: Path) -> str:
    """A model that answers "abc"."""
    return str(write_scripted(write_t1(tmp_path / "abc"), [97, 98, 99]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--threads", "200000"], "--threads is 200000; allowed: a whole number from 1 to 1024"),
        (["--threads", "2147483648"], "--threads is 2147483648; allowed: a whole number from 1 to 1024"),
        (["-n", "1_0"], "--max-new-tokens is '1_0'; allowed: a whole number"),
        (["-n", "١٢"], "--max-new-tokens is '١٢'; allowed: a whole number"),
        (["--temperature", "1_0"], "--temperature is '1_0'; allowed: a number"),
        (["--eos-token-id", "-5"], "--eos-token-id is -5; allowed: whole numbers of at least 0"),
        (["--stop", "\udcff"], "--stop is not UTF-8, and no text of a model contains it; allowed: UTF-8"),
        (["--device", "mps"], "--device is 'mps', which torch cannot use here; allowed: cpu, or a cuda or mps device"),
    ],
)
def test_refused_in_a_line(flags: list[str], message: str, abc: str) -> None:
    if flags == ["--device", "mps"]:
        torch = pytest.importorskip("torch")
        if torch.backends.mps.is_available():
            pytest.skip("this machine has one")
    result = run_genx("run", "hi", "-m", abc, *flags)
    assert (result.status, result.text) == (2, "")
    assert result.stderr.startswith(f"genx: error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("ids", ["1,,2", "1,2,", ",1", "1_0"])
def test_ids_are_whole_numbers_with_commas_between(ids: str, abc: str) -> None:
    result = run_genx("run", "-m", abc, "--ids", ids)
    assert result.status == 2
    assert f"--ids is {ids!r}; allowed: whole numbers with commas between them" in result.stderr


def test_echoed_ids_stay_apart_from_new_ones(abc: str) -> None:
    (Path(abc) / "tokenizer.json").unlink()
    result = run_genx("run", "-m", abc, "--ids", "7,8", "-n", "2", "--echo")
    assert result.text == "7,8,98,99"  # the second and third of the script, since two positions are taken


def test_direction_marks_are_shown_on_a_terminal(tmp_path: Path) -> None:
    marks = "a\u202eb".encode()
    model = str(write_scripted(write_t1(tmp_path), list(marks)))
    assert "a\\u202eb" in run_genx_at_terminal("run", "x", "-m", model, "--raw", "-n", str(len(marks)), "-q").text
    assert run_genx("run", "x", "-m", model, "--raw", "-n", str(len(marks))).text == marks.decode()


class _FullDisk(io.BytesIO):
    def write(self, _: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_under_json_is_one_line(abc: str) -> None:
    result = run_genx("run", "x", "-m", abc, "-n", "1", "--json", stdout=_FullDisk())
    assert (result.status, result.stderr) == (1, "genx: error: stdout cannot be written: No space left on device\n")


def test_json_of_an_interrupted_script_is_whole(abc: str) -> None:
    assert json.loads(run_genx("run", "x", "-m", abc, "-n", "1", "--json").text)["finish_reason"] == "length"
