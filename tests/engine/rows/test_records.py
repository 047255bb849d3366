"""From bytes to records: what ends a line, what is skipped, and that one bad record costs no other."""

import gzip
import io
from pathlib import Path

import pytest

from genx.engine.rows.records import Record, Separator, read_records
from genx.engine.rows.sources import InputFormat, find_sources
from genx.errors import ArgumentError, UsageError

LINES = Separator()


def read(path: Path, content: bytes, separator: str | None = None) -> list[Record]:
    path.write_bytes(content)
    [source] = find_sources([str(path)], io.BytesIO())
    return list(read_records(source, Separator.parse(separator)))


def read_stdin(content: bytes, chosen: InputFormat | None = None) -> list[Record]:
    [source] = find_sources(["-"], io.BytesIO(content), chosen)
    return list(read_records(source, LINES))


def texts(records: list[Record]) -> list[object]:
    return [record.fields["text"] if record.fields else None for record in records]


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_lines_end_at_line_feeds_only(tmp_path: Path, sign: str) -> None:
    """wbolster/jsonlines#53, huggingface/tau PR #354: splitlines also breaks at these."""
    assert texts(read(tmp_path / "p.txt", f"a{sign}b\nc\n".encode())) == [f"a{sign}b", "c"]
    records = (
        read(tmp_path / "p.jsonl", f'{{"prompt": "a{sign}b"}}\n{{"prompt": "c"}}'.encode()) if sign > "\x1f" else []
    )
    assert [record.fields for record in records] in ([], [{"prompt": f"a{sign}b"}, {"prompt": "c"}])


def test_crlf_and_lf_give_the_same_rows_with_and_without_a_last_line_end(tmp_path: Path) -> None:
    """volcengine/OpenViking PR #3988."""
    for content in (b"a\nb b\nc", b"a\nb b\nc\n", b"a\r\nb b\r\nc", b"a\r\nb b\r\nc\r\n"):
        assert texts(read(tmp_path / "p.txt", content)) == ["a", "b b", "c"]
    csv = "id,prompt\n1,a\n2,b\n"
    assert [r.fields for r in read(tmp_path / "a.csv", csv.encode())] == [
        r.fields for r in read(tmp_path / "b.csv", csv.replace("\n", "\r\n").encode())
    ]


def test_blank_lines_are_counted_and_cost_nothing(tmp_path: Path) -> None:
    """microsoft/graphrag#2424: one blank line lost the whole file."""
    records = read(tmp_path / "p.jsonl", b'{"prompt": "a"}\n\n   \t\n{"prompt": "b"}\n')
    assert [(record.number, record.is_blank) for record in records] == [(1, False), (2, True), (3, True), (4, False)]
    assert [record.number for record in read(tmp_path / "p.txt", b"\n\na\n") if not record.is_blank] == [3]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    """ray-project/ray#47198."""
    for name in ("p.txt", "p.jsonl", "p.csv", "p.tsv"):
        assert read(tmp_path / name, b"") == []
    assert [record.is_blank for record in read(tmp_path / "p.txt", b"\n")] == [True]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    """microsoft/playwright-cli#274: JSON parsers refuse it, and in a prompt it becomes a token."""
    assert texts(read(tmp_path / "p.txt", b"\xef\xbb\xbfa\n\xef\xbb\xbfb")) == ["a", "\ufeffb"]
    assert read(tmp_path / "p.jsonl", b'\xef\xbb\xbf{"prompt": "a"}')[0].fields == {"prompt": "a"}
    assert read(tmp_path / "p.csv", b"\xef\xbb\xbfprompt\na\n")[0].fields == {"prompt": "a"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not JSON: Expecting property name"),
        (b"[1, 2]", 'not a JSON object but a list; a row is written as {"prompt": "..."}'),
        (b'"a"', "not a JSON object but a text"),
        (b"null", "not a JSON object but null"),
        (b'{"x": NaN}', "not JSON: NaN is no JSON number"),
        (b'{"x": 1e999}', "not JSON: 1e999 is too large for a number"),
        (b'{"prompt": "a\x96b"}', "not UTF-8: byte 13 is 0x96; convert the file"),
        (b'{"x": ' + b"[" * 100_000, "the JSON is nested too deeply"),
        (b'{"x": ' + b"1" * 5000 + b"}", "not JSON: Exceeds the limit"),
    ],
)
def test_a_bad_json_line_costs_only_itself(tmp_path: Path, line: bytes, error: str) -> None:
    records = read(tmp_path / "p.jsonl", b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}\n')
    assert [record.fields for record in records] == [{"prompt": "a"}, None, {"prompt": "b"}]
    assert records[1].error is not None
    assert records[1].error.startswith(error)


def test_a_line_that_is_not_utf8_costs_only_itself(tmp_path: Path) -> None:
    """simonw/llm#225: a Latin-1 byte ended everything."""
    records = read(tmp_path / "p.txt", b"a\nb\x96c\nd\n")
    assert texts(records) == ["a", None, "d"]
    assert records[1].error == "not UTF-8: byte 1 is 0x96; convert the file, e.g. by iconv"


def test_tables(tmp_path: Path) -> None:
    content = b'id,prompt\n1,"two\nlines, and a ""quote"""\n2\n\n3,\x96\n4,"open" x\n5,last\n'
    records = read(tmp_path / "p.csv", content)
    assert [(record.number, record.fields) for record in records if record.fields] == [
        (1, {"id": "1", "prompt": 'two\nlines, and a "quote"'}),
        (6, {"id": "5", "prompt": "last"}),
    ]
    assert [record.error for record in records if record.error] == [
        "1 fields; the header names 2",
        "not UTF-8, or a line of more than 67,108,864 bytes; convert the file, e.g. by iconv",
        "not CSV: ',' expected after '\"'",
    ]
    assert read(tmp_path / "p.tsv", b"id\tprompt\n1\ta, b\n")[0].fields == {"id": "1", "prompt": "a, b"}


def test_a_large_field_of_a_table_is_read_whole(tmp_path: Path) -> None:
    text = "a" * 200_000  # beyond the limit that Python's csv has by default
    assert read(tmp_path / "p.csv", f"prompt\n{text}\n".encode())[0].fields == {"prompt": text}


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("blank-line", ["a\nb", "c\n---\nd"]),
        ("^---$", ["a\nb\n\n  \nc", "d"]),
        (r"\n\s*\n", ["a\nb", "c\n---\nd"]),
    ],
)
def test_separators(tmp_path: Path, separator: str, expected: list[str]) -> None:
    for content in ("a\nb\n\n  \nc\n---\nd\n", "a\r\nb\r\n\r\n  \r\nc\r\n---\r\nd\r\n"):
        assert texts(read(tmp_path / "p.txt", content.encode(), separator)) == expected


@pytest.mark.parametrize(("separator", "why"), [("(", "missing )"), ("x*", "matches between any two characters")])
def test_a_separator_that_separates_nothing_is_refused(separator: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=r"separator is .*" + why.replace(")", r"\)")):
        Separator.parse(separator)


def test_gzipped_inputs_read_as_plain_ones(tmp_path: Path) -> None:
    assert texts(read(tmp_path / "p.txt.gz", gzip.compress(b"\xef\xbb\xbfa\nb\n"))) == ["a", "b"]
    assert read(tmp_path / "p.jsonl.gz", gzip.compress(b'{"prompt": "a"}\n'))[0].fields == {"prompt": "a"}
    assert texts(read_stdin(gzip.compress(b"a\n"))) == ["a"]


def test_a_damaged_gzip_file_ends_with_one_bad_record(tmp_path: Path) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20_000))
    records = read(tmp_path / "p.txt.gz", gzip.compress(lines)[:-20])
    assert texts(records[:2]) == ["line 0", "line 1"]
    assert [record.error for record in records if record.error] == [
        f"{tmp_path / 'p.txt.gz'} cannot be read on: Compressed file ended before the end-of-stream marker was reached"
    ]


def test_stdin_is_json_lines_if_its_first_line_is_an_object() -> None:
    assert read_stdin(b'{"prompt": "a"}\n')[0].fields == {"prompt": "a"}
    assert read_stdin(b'{"prompt": "' + b"a" * 100_000 + b'"}\n')[0].fields == {"prompt": "a" * 100_000}
    assert texts(read_stdin(b"{braces}\n")) == ["{braces}"]
    assert texts(read_stdin(b'{"prompt": "a"}\n', InputFormat.TXT)) == ['{"prompt": "a"}']
    assert read_stdin(b"prompt\na\n", InputFormat.CSV)[0].fields == {"prompt": "a"}


def test_a_folder_is_its_files_in_order_of_their_paths(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": "two\nlines\n",
        "a/z.md": "deep",
        "a.jsonl": '{"prompt": "x"}\n{"prompt": "y"}\n',
        ".hidden": "no",
        ".git/config": "no",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    sources = find_sources([str(tmp_path)], io.BytesIO())
    found = [(s.path_in_folder, r.fields) for s in sources for r in read_records(s, LINES)]
    assert found == [
        ("a/z.md", {"text": "deep"}),
        ("a.jsonl", {"prompt": "x"}),
        ("a.jsonl", {"prompt": "y"}),
        ("b.txt", {"text": "two\nlines"}),
    ]


def test_inputs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read: No such file or directory; give a file or folder"):
        find_sources([str(tmp_path / "nowhere")], io.BytesIO())
    with pytest.raises(UsageError, match=r"the folder .* has no files"):
        find_sources([str(tmp_path)], io.BytesIO())
    with pytest.raises(UsageError, match="- is given twice"):
        find_sources(["-", "-"], io.BytesIO())


def test_a_pipe_can_be_kept_to_be_read_twice() -> None:
    [source] = find_sources(["-"], io.BytesIO(b"a\nb\n"))
    again = source.again()
    assert [texts(list(read_records(again, LINES))) for _ in range(2)] == [["a", "b"], ["a", "b"]]
