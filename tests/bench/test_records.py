"""The JSON of a report: what stands in it, and what is refused when one is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from genx.bench.measure import Measured, measure
from genx.bench.records import IDENTITY, Record, Report, read_report
from genx.errors import UsageError
from tests.bench.fakes import FakeWorkers, plan, point

ENV = {"genx": "1", "model_hash": "aa"}


@pytest.fixture(scope="module")
def report() -> Report:
    fakes = FakeWorkers(lambda job: [1.0, 2.0, 3.0, 4.0, 5.0] if job.engine == "genx" else [2.0] * 5)
    events = measure(plan(point(), point(new=0), peers=("transformers",)), (), fakes.start)
    return Report(ENV, tuple(event.record for event in events if isinstance(event, Measured)))


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_the_schema(report: Report) -> None:
    written = report.to_json()
    assert list(written) == ["schema", "env", "points"]
    assert written["schema"] == 1
    first = written["points"][0]
    named = {
        *("engine", "prompt_tokens", "new_tokens", "batch", "depth", "dtype", "threads", "weights", "status"),
        *("ttft_s", "prefill_tps", "decode_tps", "itl_ms", "peak_memory_bytes", "cache_bytes", "load_s"),
        *("limit_share", "token_passes"),
    }
    assert named <= set(first)
    for name in ("ttft_s", "prefill_tps", "decode_tps", "peak_memory_bytes", "cache_bytes", "load_s", "limit_share"):
        assert set(first[name]) == {"median", "ci95", "ci_coverage", "samples"}, name
    assert set(first["itl_ms"]) == {"median", "ci95", "ci_coverage", "samples", "p50", "p90", "p99", "latencies"}
    assert [found["engine"] for found in written["points"]] == ["genx", "transformers"] * 2
    assert set(written["points"][1]["ratio"]) == {"prefill_tps", "decode_tps"}
    assert written["points"][2]["itl_ms"] is None


def test_what_is_written_is_read(report: Report, tmp_path: Path) -> None:
    assert read_report(write(tmp_path / "a.json", report.to_json())) == report


def test_lines_belong_together_and_the_last_may_be_torn(report: Report, tmp_path: Path) -> None:
    lines = [json.dumps(Report(ENV, (found,)).to_json()) for found in report.points]
    whole = write(tmp_path / "a.jsonl", "\n".join(lines) + "\n")
    assert read_report(whole) == report
    torn = write(tmp_path / "b.jsonl", "\n".join(lines)[:-30])
    assert read_report(torn).points == report.points[:-1]
    spoiled = write(tmp_path / "c.jsonl", "\n".join([lines[0], lines[1][:-30], lines[2]]))
    with pytest.raises(UsageError, match="is no complete report of genx bench"):
        read_report(spoiled)


def test_a_byte_order_mark_is_no_part_of_it(report: Report, tmp_path: Path) -> None:
    """microsoft/playwright-cli#274"""
    assert read_report(write(tmp_path / "a.json", "\ufeff" + json.dumps(report.to_json()))) == report


@pytest.mark.parametrize("name", IDENTITY)
def test_points_are_told_apart_by_what_they_are(report: Report, name: str) -> None:
    found = report.points[0].to_json()
    assert Record.from_json(found).identity == report.points[0].identity
    assert (
        Record.from_json(
            {**found, name: {"do_sample": True} if name == "sampling" else 7 if type(found[name]) is int else "x"}
        ).identity
        != report.points[0].identity
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "x",
        "[]",
        "7",
        "{}",
        '{"schema": 2, "env": {}, "points": []}',
        '{"schema": 1, "env": {}}',
        '{"schema": 1, "env": 3, "points": []}',
        '{"schema": 1, "env": {}, "points": [3]}',
        '{"schema": 1, "env": {}, "points": [{"engine": "genx"}]}',
        "\udcff",
    ],
)
def test_other_files_are_refused_in_a_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        read_report(path)
    assert "a.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"prompt_tokens": "8"}, {"status": None}, {"ttft_s": {"samples": ["x"]}}])
def test_points_with_impossible_values_are_refused(report: Report, change: dict[str, Any], tmp_path: Path) -> None:
    written = report.to_json()
    written["points"][0] = {**written["points"][0], **change}
    with pytest.raises(UsageError, match="is no complete report"):
        read_report(write(tmp_path / "a.json", written))


def test_nan_is_no_figure(report: Report, tmp_path: Path) -> None:
    written = report.to_json()
    written["points"][0]["ttft_s"]["samples"] = [float("nan")]
    with pytest.raises(UsageError, match="is no complete report"):
        read_report(write(tmp_path / "a.json", written))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_report(tmp_path / "a.json")
