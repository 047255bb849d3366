"""What genx bench shows and compares, on reports that were written before: nothing is measured here."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from genx.bench.jobs import Job, Survey
from genx.bench.measure import Measured, measure
from genx.bench.records import Report
from genx.bench.sweep import Point
from tests.bench.fakes import RATES, FakeWorkers, plan, point
from tests.cli.in_process import Result, run_genx, run_genx_at_terminal
from tests.fixtures.models import write_scripted

STEADY = (1.0, 1.01, 1.02, 1.03, 1.04)


def write_report(path: Path, *points: Point, factor: float = 1.0, **more: Any) -> str:
    """A report of points whose five runs took `factor` times 1 to 1.04 s a token."""

    def durations(job: Job) -> list[float]:
        return [factor * seconds * (2 if job.engine == "transformers" else 1) for seconds in STEADY]

    events = measure(plan(*points, **more), (), FakeWorkers(durations).start)
    records = tuple(event.record for event in events if isinstance(event, Measured))
    path.write_text(json.dumps(Report({}, records).to_json()))
    return str(path)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder, on a machine that need not be looked at."""
    folder = str(write_scripted(tmp_path / "model", [5]))
    found = Survey("cpu", "cpu", "2.13.0", (("float32", "float32"),), 100, 97, RATES)
    monkeypatch.setattr("genx.cli.bench_prepare.survey", lambda *_: found)
    return folder


def arguments(model: str, report: str, *more: str) -> list[str]:
    return ["bench", "-m", model, "--threads", "2", "-g", "4", "--resume", report, *more]


@pytest.fixture
def several(tmp_path: Path) -> str:
    points = [point(depth=depth) for depth in (0, 20, 60)]
    return write_report(tmp_path / "several.json", *points, peers=("transformers",))


SWEEP = ("-p", "8", "-d", "0,20,60", "--against", "transformers")


def test_a_table(model: str, several: str) -> None:
    shown = run_genx(*arguments(model, several, *SWEEP)).text
    assert "cpu: " in shown
    assert "measured with 2 threads: memory 10.0 GB/s, float32 100 GFLOP/s" in shown
    assert "new 4, batch 1, dtype float32, weights float32, threads 2, greedy, end of text ignored" in shown
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    titles = ["engine", "prompt", "depth", "ttft s", "prefill tok/s", "decode tok/s", "limit", "peak"]
    assert cells[0] == titles
    assert cells[1] == ["genx", "8", "0", "1.020 +-2%", "7.8 +-2%", "1.0 +-2%", "10%", "95.37 MiB"]
    assert [row[:3] for row in cells[2:]] == [
        ["transformers", "8", "0"],
        *([engine, "8", depth] for depth in ("20", "60") for engine in ("genx", "transformers")),
    ]


def test_what_stands_below_the_table(model: str, several: str) -> None:
    lines = run_genx(*arguments(model, several, *SWEEP)).text.splitlines()
    name = "engine genx, prompt 8, depth 20"
    assert f"{name}: ms between tokens: p50 1,020.0, p90 1,040.0, p99 1,040.0" in lines
    assert f"{name}: a token reads 953.67 MiB and takes 1.0 MFLOP: at most 10.0 tok/s here" in lines
    assert f"{name}: 11 token passes a row; the formulas say 11 with the cache and 118 without" in lines
    assert "engine transformers, prompt 8, depth 20: genx is 2.00 times [2.00, 2.00] as fast in decode" in lines
    assert "± is half the interval of the median: smallest to largest of 5 repeats, which holds it with 93.75%" in lines


def test_decode_speed_over_context_as_bars(model: str, several: str) -> None:
    shown = run_genx(*arguments(model, several, *SWEEP)).text
    chart = shown[shown.index("decode tok/s over") :].splitlines()
    assert chart[1] == "genx float32, batch 1, threads 2"
    assert chart[2:5] == [f"{context:>2} {'#' * 60} 1.0" for context in (8, 28, 68)]
    assert chart[6] == f" 8 {'#' * 30:<60} 0.5"
    assert "decode tok/s over" not in run_genx(*arguments(model, several, *SWEEP, "--no-chart")).text


def test_one_context_has_no_chart_unless_asked_for(model: str, tmp_path: Path) -> None:
    one = write_report(tmp_path / "one.json", point())
    assert "decode tok/s over" not in run_genx(*arguments(model, one, "-p", "8")).text
    assert "decode tok/s over" in run_genx(*arguments(model, one, "-p", "8", "--chart")).text


@pytest.mark.parametrize("columns", [1, 5, 10, 20, 80])
def test_terminals_of_any_width(model: str, several: str, columns: int) -> None:
    """Textualize/rich#4214: a narrow console divided by zero."""
    result = run_genx_at_terminal(*arguments(model, several, *SWEEP), columns=columns)
    assert result.status == 0
    assert "transformers" in result.text
    assert "1.020" in result.text
    assert "^[" not in result.text  # the table's own colours are obeyed, not shown


def test_columns_of_0_is_an_unknown_width(model: str, several: str) -> None:
    """rhel-lightspeed/command-line-assistant PR #421"""
    assert "1.020" in run_genx(*arguments(model, several, *SWEEP), environment={"COLUMNS": "0"}).text


def test_markdown(model: str, several: str) -> None:
    lines = run_genx(*arguments(model, several, *SWEEP, "-o", "md")).text.splitlines()
    assert lines[0].startswith("| engine | prompt | new | batch | depth | dtype | weights | threads | ttft s |")
    assert lines[1] == "| --- |" + " ---: |" * 12
    assert lines[2] == (
        "| genx | 8 | 4 | 1 | 0 | float32 | float32 | 2 | 1.020 ±2% | 7.8 ±2% | 1.0 ±2% | 10% | 95.37 MiB |"
    )


def test_comma_separated_values(model: str, several: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run_genx(*arguments(model, several, *SWEEP, "-o", "csv")).text)))
    assert len(rows) == 6
    first = {name: rows[0][name] for name in ("total_tokens", "ttft_s", "ttft_s_low", "ttft_s_high", "repeats")}
    assert first == {"total_tokens": "12", "ttft_s": "1.02", "ttft_s_low": "1.0", "ttft_s_high": "1.04", "repeats": "5"}


def test_json_is_what_was_read(model: str, several: str) -> None:
    found = json.loads(run_genx(*arguments(model, several, *SWEEP, "-o", "json")).text)
    assert found["points"] == json.loads(Path(several).read_text())["points"]
    lines = run_genx(*arguments(model, several, *SWEEP, "-o", "jsonl")).text.splitlines()
    assert [json.loads(line)["points"][0] for line in lines] == found["points"]


def test_texts_of_a_report_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#28969: names in a file drove the terminal."""
    path = Path(write_report(tmp_path / "a.json", point()))
    content = json.loads(path.read_text())
    content["points"][0] |= {"weights": "\x1b[2J", "status": "ok\x1b[2J", "error": "\x1b[2J"}
    path.write_text(json.dumps(content))
    other = write_report(tmp_path / "b.json", point())
    result = run_genx("bench", "--compare", str(path), other)
    assert "\x1b" not in result.text
    assert "\\x1b[2J" in result.text
    for form in ("table", "md", "csv", "json", "jsonl"):
        assert "\x1b" not in run_genx("bench", "--compare", str(path), other, "-o", form).text, form


def compared(first: str, second: str, *more: str) -> Result:
    return run_genx("bench", "--compare", first, second, *more)


def test_a_slower_report_is_told_from_chance(tmp_path: Path) -> None:
    base = write_report(tmp_path / "a.json", point(), point(batch=2))
    slower = write_report(tmp_path / "b.json", point(), point(batch=2), factor=1.25)
    result = compared(base, slower, "--fail-if-slower", "5%")
    assert result.status == 1
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.text.splitlines() if "genx" in line]
    assert cells[0] == [
        *("genx float32 8+4, batch 1, threads 2", "prefill", "7.8", "6.3", "0.800", "[0.777, 0.824]", "slower"),
    ]
    assert len(cells) == 4
    assert "slower by more than 5.0%: genx float32 8+4, batch 2, threads 2: decode_tps is 0.80 times" in result.stderr
    assert compared(base, slower, "--fail-if-slower", "25%").status == 0
    assert compared(base, slower).status == 0
    assert compared(slower, base, "--fail-if-slower", "5%").status == 0


def test_small_differences_are_not_significant(tmp_path: Path) -> None:
    base = write_report(tmp_path / "a.json", point())
    other = write_report(tmp_path / "b.json", point(), factor=1.001)
    result = compared(base, other, "--fail-if-slower", "0%")
    assert (result.status, result.text.count("not significant")) == (0, 2)


def test_a_point_that_fails_now_is_slower(tmp_path: Path) -> None:
    base = write_report(tmp_path / "a.json", point())
    content = json.loads(Path(base).read_text())
    content["points"][0] |= {"status": "oom", "error": "full", "ttft_s": None, "prefill_tps": None, "decode_tps": None}
    failed = tmp_path / "b.json"
    failed.write_text(json.dumps(content))
    result = compared(base, str(failed), "--fail-if-slower", "5%")
    assert result.status == 1
    assert "decode_tps is oom" in result.stderr


def test_what_differs_throughout_is_what_is_compared(tmp_path: Path) -> None:
    base = write_report(tmp_path / "a.json", point(), point(batch=2))
    other = write_report(tmp_path / "b.json", point(dtype="bfloat16"), point(batch=4, dtype="bfloat16"))
    text = compared(base, other).text
    assert "A has dtype float32, B bfloat16" in text
    assert "only in A: genx float32 8+4, batch 2, threads 2" in text
    assert "only in B: genx bfloat16 8+4, batch 4, threads 2" in text


def test_reports_without_a_common_point_prove_nothing(tmp_path: Path) -> None:
    base = write_report(tmp_path / "a.json", point(), point(batch=2))
    other = write_report(tmp_path / "b.json", point(batch=3), point(batch=4))
    result = compared(base, other, "--fail-if-slower", "5%")
    assert result.status == 1
    assert "the reports have no point in common" in result.stderr


def test_a_comparison_for_programs(tmp_path: Path) -> None:
    base = write_report(tmp_path / "a.json", point())
    other = write_report(tmp_path / "b.json", point(), factor=0.5)
    found = json.loads(compared(base, other, "-o", "json").text)
    assert found["pairs"][0]["ratios"]["decode_tps"]["significant"] is True
    assert found["pairs"][0]["ratios"]["decode_tps"]["median"] == pytest.approx(2.0, rel=0.01)
    assert "| point | rate |" in compared(base, other, "-o", "md").text
    assert compared(base, other, "-o", "csv").text.startswith("point,rate,A tok/s,")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["-p", "0"], "--prompt-tokens is '0'; allowed: whole numbers from 1 to"),
        (["-g", "x"], "--new-tokens is 'x'; allowed: whole numbers from 0 to"),
        (["-b", "0"], "--batch-size is '0'; allowed: whole numbers from 1 to"),
        (["-d", "8", "--no-cache"], "--depth needs the cache that --no-cache switches off"),
        (["-r", "0"], "--repeats is '0'; allowed: whole numbers from 1 to"),
        (["--warmup", "1,2"], "--warmup is '1,2'; allowed: one whole number"),
        (["--threads", "0"], "--threads is '0'; allowed: whole numbers from 1 to"),
        (["--dtype", "float32,x"], "--dtype is 'x'; allowed: auto, float32"),
        (["--device", "x"], "--device is 'x'; allowed: auto, cpu"),
        (["--quantize", "int3"], "--quantize is 'int3'; allowed: none, int8, int4"),
        (["--kernels", "x"], "--kernels is 'x'; allowed: auto, native, torch"),
        (["--top-k", "3", "--top-p", "0.5"], "--top-k (3) and --top-p (0.5) are both given"),
        (["--forward-only", "--top-k", "3"], "--forward-only chooses no tokens"),
        (["--against", "x"], "--against is 'x'; allowed: transformers, llama.cpp"),
        (["--against", "transformers", "--forward-only"], "--against and --forward-only are both given"),
        (["--gguf", "x.gguf"], "--gguf is given without --against llama.cpp"),
        (["-o", "xml"], "--output is 'xml'; allowed: table, md, csv, json, jsonl"),
        (["-o", "json", "--chart"], "--chart belongs to a table and --output is json"),
        (["--plot", "x.gif"], "--plot is 'x.gif'; allowed: a name that ends in .svg or .png"),
        (["--fail-if-slower", "5%"], "--fail-if-slower is given without --compare"),
        (["--compare", "a", "b", "-p", "8"], "--compare and --prompt-tokens are both given"),
        (["--compare", "a", "b", "--fail-if-slower", "5"], "--fail-if-slower is '5'; allowed: a percentage"),
        (["--compare", "nowhere", "b"], "the report nowhere cannot be read"),
        (["-m", "."], ". has no config.json"),
    ],
)
def test_refusals(typed: list[str], message: str) -> None:
    result = run_genx("bench", *typed)
    assert result.status in (1, 2)
    assert result.stdout == b""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "typed", "message"),
    [
        ("transformers", ["--against", "transformers"], "--against transformers needs the package transformers"),
        ("xllamacpp", ["--against", "llama.cpp", "--gguf", "x"], "--against llama.cpp needs the package xllamacpp"),
        (
            "matplotlib",
            ["--plot", "x.svg"],
            "--plot needs matplotlib, which is not installed; pip install 'genx[plot]'",
        ),
    ],
)
def test_what_is_not_installed_is_named(
    package: str, typed: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genx.cli.bench_request.find_spec", lambda name: None if name == package else object())
    result = run_genx("bench", *typed)
    assert result.status == 2
    assert message in result.stderr


def test_ctrl_c_reports_what_is_there(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = write_report(tmp_path / "a.json", point())

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("genx.bench.process.ProcessWorker.__init__", interrupted)
    result = run_genx(*arguments(model, report, "-p", "8,9"))
    assert result.status == 130
    assert "1.020" in result.text
    assert "interrupted; 1 rows are reported" in result.stderr


@pytest.mark.parametrize(("more", "shown"), [((), True), (("-q",), False)])
def test_a_bar_on_the_terminal(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], shown: bool
) -> None:
    start = FakeWorkers(lambda job: STEADY).start
    monkeypatch.setattr("genx.cli.bench_session.measure", lambda of, known: measure(of, known, start))
    known = write_report(tmp_path / "a.json", point())
    result = run_genx_at_terminal(*arguments(model, known, "-p", "8,9", "--warmup", "0", *more))
    assert result.status == 0
    assert ("genx 9+4, batch 1, float32: " in result.stderr) is shown
    assert "genx 8+4" not in result.stderr  # was there already
    assert "1.020" in result.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_plot(model: str, several: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.svg"
    assert run_genx(*arguments(model, several, *SWEEP, "--plot", str(picture))).status == 0
    assert "<svg" in picture.read_text()
