"""Files of prompts through the program: what goes in, what comes out, and how it ends."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import run_genx
from tests.cli.rows import answers, run_rows, write_babbler, write_jsonl
from tests.fixtures.models import write_scripted
from tests.fixtures.tokenizers import write_t1


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("babbler"))


def test_a_prompt_a_line_gives_an_object_a_line(babbler: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"one\n\ntwo\n")
    result = run_rows(babbler, "-i", tmp_path / "p.txt", "-n", "4")
    assert result.status == 0
    assert result.stderr == "genx: 2 rows: 1 blank line skipped, 6 prompt and 8 new tokens in 0.0 s\n"
    [first, second] = answers(result)
    assert list(first) == (
        "id row text ids finish_reason prompt_tokens new_tokens seed timings error key".split()  # noqa: SIM905
    )
    assert (first["row"], second["row"]) == (1, 3)
    assert (first["finish_reason"], first["prompt_tokens"], first["new_tokens"]) == ("length", 3, 4)
    assert (first["id"], first["seed"], first["error"]) == (None, None, None)


@pytest.mark.parametrize("flags", [[], ["--temperature", "0.8", "--seed", "3"]], ids=["greedy", "sampled"])
def test_a_row_is_what_genx_run_says_to_its_prompt(babbler: Path, tmp_path: Path, flags: list[str]) -> None:
    """The seed that a row states makes `genx run` say the same."""
    (tmp_path / "p.txt").write_bytes(b"one\ntwo\nthree\n")
    rows = answers(run_rows(babbler, "-i", tmp_path / "p.txt", "-n", "30", *flags))
    for row, prompt in zip(rows, ("one", "two", "three"), strict=True):
        seed = [] if row["seed"] is None else ["--seed", str(row["seed"])]
        result = run_genx("run", prompt, "-n", "30", "--json", *flags[:2], *seed, "-m", str(babbler))
        alone = json.loads(result.stdout)
        assert (row["text"], row["ids"], row["finish_reason"]) == (alone["text"], alone["ids"], alone["finish_reason"])
        assert row["seed"] == alone["seed"]


def test_sampled_rows_do_not_depend_on_batch_size_order_or_neighbours(babbler: Path, tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "prompt": f"prompt {n % 3}"} for n in range(9)]
    forwards = write_jsonl(tmp_path / "a.jsonl", rows)
    backwards = write_jsonl(tmp_path / "b.jsonl", rows[::-1][:7])
    flags = ["--top-k", "20", "--seed", "1", "-n", "20"]
    one = {a["id"]: a["text"] for a in answers(run_rows(babbler, "-i", forwards, "-b", "1", *flags))}
    for size in ("2", "4", "17"):
        assert {a["id"]: a["text"] for a in answers(run_rows(babbler, "-i", forwards, "-b", size, *flags))} == one
        some = {a["id"]: a["text"] for a in answers(run_rows(babbler, "-i", backwards, "-b", size, *flags))}
        assert some.items() <= one.items()
    assert len(set(one.values())) == 9  # exllamav2#186: equal prompts must not give equal samples


def test_samples_are_rows_with_seeds_of_their_own(babbler: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "p.jsonl", [{"id": 7, "prompt": "a"}, {"prompt": "b", "seed": 5}])
    rows = answers(run_rows(babbler, "-i", source, "--samples", "3", "--temperature", "1", "-n", "8"))
    assert [(row["id"], row["row"], row["sample"]) for row in rows] == [
        (7, 1, 1), (7, 1, 2), (7, 1, 3), (None, 2, 1), (None, 2, 2), (None, 2, 3)
    ]  # fmt: skip
    assert len({row["seed"] for row in rows}) == len({row["text"] for row in rows}) == 6
    assert rows[3]["seed"] == 5
    assert all(row["seed"] < 2**53 for row in rows)
    without = answers(run_rows(babbler, "-i", source, "--temperature", "1", "-n", "8"))
    assert [row["text"] for row in without] == [rows[0]["text"], rows[3]["text"]]


def test_a_bad_row_becomes_a_row_with_an_error_and_the_rest_go_on(tmp_path: Path) -> None:
    """CarperAI/trlx#130, ggml-org/llama.cpp#8438, huggingface/transformers PR #43459."""
    model = write_babbler(tmp_path / "m")
    lines = [
        b'{"id": "ok", "prompt": "fine", "max_new_tokens": 2, "label": [1]}',
        b'{"prompt": ',
        b'{"prompt": ""}',
        b'{"id": "deep", "prompt": "a", "top_p": "much", "label": 2}',
        b'{"prompt": "a", "top_k": 3, "top_p": 0.5}',
        b'{"prompt": "a", "max_new_tokens": 1.5}',
        b'{"prompt": "a", "stop": [1]}',
        b'{"prompt": 3}',
        b'{"text": "a"}',
        b'{"id": "ok", "prompt": "b"}',
        b'{"id": [1], "prompt": "b"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "' + b"a" * 65 + b'"}',
        b'{"messages": [{"role": "user", "content": "a"}]}',
        b'{"prompt": "last", "max_new_tokens": 1}',
    ]
    (tmp_path / "p.jsonl").write_bytes(b"\n".join(lines))
    result = run_rows(model, "-i", tmp_path / "p.jsonl")
    rows = answers(result)
    assert result.status == 3
    assert result.stderr == "genx: 15 rows: 13 failed, 8 prompt and 3 new tokens in 0.0 s\n"
    assert [row["row"] for row in rows] == list(range(1, 16))
    assert [row["finish_reason"] for row in rows] == ["length", *["error"] * 13, "length"]
    assert (rows[0]["id"], rows[0]["new_tokens"], rows[0]["label"]) == ("ok", 2, [1])
    assert (rows[3]["id"], rows[3]["text"], rows[3]["label"]) == ("deep", None, 2)
    assert [row["error"] for row in rows[1:-1]] == [
        "not JSON: Expecting value: line 1 column 12 (char 11)",
        "the prompt is empty; give some text",
        "top_p is 'much'; allowed: a number",
        "top_k (3) and top_p (0.5) are both given; allowed: one of them; drop the other",
        "max_new_tokens is 1.5; allowed: a whole number",
        "stop is [1]; allowed: a text, or a list of texts",
        "the prompt is 3; allowed: a text",
        "no field 'prompt'; the row has the fields text; --field or --template names another",
        "the id 'ok' is that of row 1 too; ids must differ",
        "the id is [1]; allowed: a text or a whole number",
        "the text holds a lone surrogate, U+D800, at character 0; allowed: valid Unicode; "
        "remove it or put U+FFFD in its place",
        "the prompt has 65 tokens and the model's context 64; shorten the prompt, "
        "or give truncate left to read its last 64 tokens only, or right for its first",
        "'messages' need a chat template, and this checkpoint has none; give 'prompt' instead",
    ]


def test_exit_codes(babbler: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n[]\n")
    (tmp_path / "empty.txt").write_text("")
    assert run_rows(babbler, "-i", tmp_path / "bad.jsonl").status == 1
    result = run_rows(babbler, "-i", tmp_path / "empty.txt")  # ray-project/ray#47198
    assert (result.status, result.stdout) == (0, b"")
    assert result.stderr == "genx: 0 rows: 0 prompt and 0 new tokens in 0.0 s\n"
    assert run_rows(babbler, "-i", tmp_path / "nowhere").status == 2


@pytest.mark.parametrize(("length", "new"), [(63, 3), (64, 3)])
def test_a_prompt_may_fill_the_context(tmp_path: Path, length: int, new: int) -> None:
    """vllm-project/vllm#16445: a prompt exactly as long as the context goes on past it."""
    model = write_babbler(tmp_path / "m")
    (tmp_path / "p.txt").write_text("a" * length)
    [row] = answers(run_rows(model, "-i", tmp_path / "p.txt", "-n", str(new)))
    assert (row["prompt_tokens"], row["new_tokens"], row["error"]) == (length, new, None)


def test_truncate_cuts_long_prompts_on_request(tmp_path: Path) -> None:
    model = write_babbler(tmp_path / "m")
    (tmp_path / "p.txt").write_text("b" + "a" * 64 + "c")
    left, right = (
        answers(run_rows(model, "-i", tmp_path / "p.txt", "-n", "3", "--truncate", s))[0] for s in ("left", "right")
    )
    assert [row["prompt_tokens"] for row in (left, right)] == [64, 64]
    assert left["ids"] != right["ids"]
    assert left["key"] != right["key"]


def test_per_row_settings_take_the_place_of_flags(babbler: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a"},
        {"prompt": "a", "temperature": 0},
        {"prompt": "a", "seed": 9, "top_p": 0.9},
        {"prompt": "a", "max_new_tokens": 2},
        {"prompt": "a", "top_k": None},
    ]
    flags = ["--top-k", "5", "--seed", "4", "-n", "6"]
    got = answers(run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows), *flags))
    assert [row["error"] for row in got] == [None] * 5
    assert [row["new_tokens"] for row in got] == [6, 6, 6, 2, 6]
    assert [row["seed"] is None for row in got] == [False, True, False, False, False]
    assert got[2]["seed"] == 9
    greedy = run_genx("run", "a", "-n", "6", "-m", str(babbler))
    assert got[1]["text"] == greedy.text


def test_stops_of_a_row_are_its_own(babbler: Path, tmp_path: Path) -> None:
    whole = answers(run_rows(babbler, "-i", "-", "-n", "9", stdin=b"a\n"))[0]["text"]
    rows = [{"prompt": "a", "stop": whole[3:5]}, {"prompt": "a"}, {"prompt": "a", "stop": ["\n", whole[5]]}]
    got = answers(run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows), "-n", "9", "--stop", whole[7:9]))
    assert [row["text"] for row in got] == [whole[:3], whole[: whole.index(whole[7:9])], whole[: whole.index(whole[5])]]
    assert [row["finish_reason"] for row in got] == ["stop"] * 3


def test_passed_fields_keep_out_of_the_answers_way(babbler: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "text": 1, "key": {"x": None}, "input_text": 2, "é\u2028": "\ud800"}]
    result = run_rows(babbler, "-i", write_jsonl(tmp_path / "p.jsonl", rows), "-n", "1")
    [row] = answers(result)
    assert row["input_text"] == 1
    assert row["input_input_text"] == 2
    assert row["input_key"] == {"x": None}
    assert row["é\u2028"] == "\ud800"
    assert result.stdout.count(b"\n") == 1


def test_templates_and_fields(babbler: Path, tmp_path: Path) -> None:
    table = tmp_path / "p.csv"
    table.write_text("id,question,temperature\nx,hi {there},30\n")
    for flags, prompt in (
        (["--field", "question"], "hi {there}"),
        (["--template", "Q: {question}\n{{{temperature}}}"], "Q: hi {there}\n{30}"),
    ):
        [row] = answers(run_rows(babbler, "-i", table, "-n", "2", *flags))
        assert (row["id"], row["prompt_tokens"], row["error"]) == ("x", len(prompt), None)
        assert row["text"] == run_genx("run", prompt, "-n", "2", "-m", str(babbler)).text
    result = run_rows(babbler, "-i", table, "--template", "{nothing}")
    assert answers(result)[0]["error"] == (
        "no field 'nothing' for the template; the row has the fields id, question, temperature"
    )
    result = run_rows(babbler, "-i", "-", "-n", "1", "--template", "<{text}>", stdin=b"hi\n")
    assert answers(result)[0]["prompt_tokens"] == 4


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    model = write_babbler(tmp_path / "m", chat_template=template)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    rows = [{"messages": turns}, {"prompt": "a"}, {"messages": [{"role": "system", "content": "t"}, *turns[:1]]}]
    rows += [{"messages": []}, {"messages": turns, "prompt": "a"}]  # type: ignore[dict-item]
    got = answers(run_rows(model, "-i", write_jsonl(tmp_path / "p.jsonl", rows), "-n", "1", "-s", "s"))
    assert [row["prompt_tokens"] for row in got[:3]] == [
        len("[system]s[user]a[assistant]b[user]c>"), len("[system]s[user]a>"), len("[system]t[user]a>")
    ]  # fmt: skip
    assert [row["error"] for row in got[3:]] == [
        '\'messages\' must be a list such as [{"role": "user", "content": "..."}]',
        "both 'prompt' and 'messages' are given; allowed: one of them",
    ]


def test_several_inputs_name_their_rows(babbler: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    (tmp_path / "b.txt").write_text("x\n")
    got = answers(run_rows(babbler, "-i", tmp_path / "a.txt", "-i", tmp_path / "b.txt", "-n", "3", "--top-k", "9"))
    assert [(row["file"], row["row"]) for row in got] == [
        (str(tmp_path / "a.txt"), 1), (str(tmp_path / "a.txt"), 2), (str(tmp_path / "b.txt"), 1)
    ]  # fmt: skip
    assert got[0]["seed"] != got[2]["seed"]
    folder = answers(run_rows(babbler, "-i", tmp_path, "-n", "3"))
    assert [(row["id"], row["prompt_tokens"]) for row in folder] == [("a.txt", 3), ("b.txt", 1)]


def test_text_output_is_an_answer_a_line(babbler: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": ""}, {"prompt": "b"}])
    texts = [row["text"] for row in answers(run_rows(babbler, "-i", source, "-n", "5"))]
    result = run_rows(babbler, "-i", source, "-n", "5", "--format", "text")
    assert result.text == f"{texts[0]}\n\n{texts[2]}\n"


def test_csv_output_is_a_table(babbler: Path, tmp_path: Path) -> None:
    table = tmp_path / "p.csv"
    table.write_text('id,prompt,note\n1,a,"x, ""y"""\n2,,z\n')
    out = tmp_path / "o.csv"
    assert run_rows(babbler, "-i", table, "-o", out, "-n", "5").status == 3
    rows = list(csv.DictReader(io.StringIO(out.read_text(), newline="")))
    expected = answers(run_rows(babbler, "-i", table, "-n", "5"))
    assert [row["text"] for row in rows] == [expected[0]["text"], ""]
    assert [(row["id"], row["note"], row["error"]) for row in rows] == [
        ("1", 'x, "y"', ""), ("2", "z", "the prompt is empty; give some text")
    ]  # fmt: skip
    source = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "a", "x": [1]}, {"prompt": "b", "y": 2}])
    rows = list(csv.DictReader(io.StringIO(run_rows(babbler, "-i", source, "-n", "1", "--format", "csv").text)))
    assert [(row["x"], row["more"]) for row in rows] == [("[1]", ""), ("", '{"y": 2}')]


def test_count_needs_no_weights(tmp_path: Path) -> None:
    model = write_babbler(tmp_path / "m")
    (model / "model.safetensors").unlink()
    rows = [{"id": "a", "prompt": "x" * 10}, {"prompt": "y" * 50, "max_new_tokens": 20}, {"prompt": "z" * 65}]
    source = write_jsonl(tmp_path / "p.jsonl", [*rows, {"prompt": "w"}])
    result = run_rows(model, "-i", source, "--count", "-n", "5", "--json")
    counted = json.loads(result.stdout)
    assert result.status == 3
    assert [(row["id"], row["prompt_tokens"], row["max_new_tokens"]) for row in counted["tokens"]] == [
        ("a", 10, 5), (None, 50, 20), (None, 0, 0), (None, 1, 5)
    ]  # fmt: skip
    assert (counted["rows"], counted["failing_rows"], counted["rows_past_context"]) == (4, 1, 1)
    assert (counted["prompt_tokens"], counted["max_new_tokens"]) == (61, 30)
    per_position = 2 * 4 * 4  # one key/value head of size 4 in one layer, in float32
    assert [counted["cache_bytes"][size] for size in ("1", "2", "16")] == [
        64 * per_position, (64 + 15) * per_position, (64 + 15 + 6) * per_position
    ]  # fmt: skip
    table = run_rows(model, "-i", source, "--count", "-n", "5").text.splitlines()
    assert table[:5] == [
        "rows: 4, 1 cannot be run, 0 blank lines",
        "prompt tokens: 61 (shortest 1, median 10, longest 50)",
        "new tokens: at most 30",
        "past the context of 64: 1 rows",
        "caches, at most, by batch size: 1: 2.00 KiB, 2: 2.47 KiB, 4: 2.66 KiB, 8: 2.66 KiB, 16: 2.66 KiB, "
        "32: 2.66 KiB, 64: 2.66 KiB",
    ]
    assert table[5].startswith("time: at least ")
    assert table[6].startswith("row 3: the prompt has 65 tokens")


@pytest.mark.parametrize("flags", [[], ["--batch-invariant"]])
def test_verify_batch_reports(babbler: Path, flags: list[str]) -> None:
    prompts = b"".join(b"%d\n" % n for n in range(12))
    result = run_rows(babbler, "-i", "-", "-n", "5", "--verify-batch", "4", "--top-k", "9", *flags, stdin=prompts)
    assert (result.status, len(answers(result))) == (0, 12)
    assert "genx: 4 rows generated again, alone: the same tokens\n" in result.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "2"], "--batch-size is for files of prompts, and none is given; give one with --input"),
        (["--resume", "-i", "p"], "--resume needs a file that an earlier run has written; give it with --output"),
        (["-i", "p", "--max-time", "3"], "--max-time and --input are both given; allowed: one of them; drop the other"),
        (["-i", "p", "--no-cache"], "--no-cache and --input are both given; allowed: one of them; drop the other"),
        (["hello", "-i", "p"], "PROMPT and --input are both given; allowed: one of them; drop the other"),
        (["-i", "p", "-b", "0"], "--batch-size is 0; allowed: a whole number of at least 1"),
        (["-i", "p", "--format", "xml"], "--format is 'xml'; allowed: jsonl, text, csv"),
        (
            ["-i", "p", "--template", "x"],
            "--template names no field, so that every prompt would be the same; name one as {text}",
        ),
        (
            ["-i", "p", "--template", "{x"],
            "--template has a lone '{' at character 0; write a field as {name}, a brace twice",
        ),
        (["-i", "p", "--retry-errors"], "--retry-errors is given without --resume; give both"),
        (
            ["-i", "p", "--resume", "--overwrite", "-o", "x"],
            "--resume and --overwrite are both given; allowed: one of them; drop the other",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_read(flags: list[str], message: str) -> None:
    result = run_genx("run", "-m", "nowhere", *flags)
    assert (result.status, result.stdout, result.stderr) == (2, b"", f"genx: error: {message}\n")


def test_stdout_closed_early_ends_quietly(babbler: Path) -> None:
    class Gone(io.BytesIO):
        def write(self, data: Any) -> int:
            raise BrokenPipeError

    # On a slow machine there would be a line of progress; no time passes here.
    result = run_genx("run", "-i", "-", "-m", str(babbler), stdin=b"a\nb\n", stdout=Gone(), clock=lambda: 0.0)
    assert (result.status, result.stderr) == (0, "")


def test_a_pipeline_of_processes(tmp_path: Path) -> None:
    """cat prompts.txt | genx run -i - | jq -r .text."""
    model = write_scripted(write_t1(tmp_path / "m", ["</s>"], eos_token="</s>"), [*"42 é".encode(), 256])
    genx = [sys.executable, "-m", "genx", "run", "-i", "-", "-m", str(model), "--quiet"]
    done = subprocess.run(genx, input=b"a\nb\n", capture_output=True, check=True, timeout=120)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["42 é", "42 é"]
    assert done.stderr == b""
    jq = shutil.which("jq")
    if jq:
        texts = subprocess.run([jq, "-r", ".text"], input=done.stdout, capture_output=True, check=True)
        assert texts.stdout == "42 é\n42 é\n".encode()
