"""The command itself: where it reads, what it prints for people and for pipes, and how narrow it can get."""

import csv
import http.server
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genx.kv_size.report import CSV_COLUMNS
from tests.cli.in_process import run_genx_at_terminal
from tests.kv_size.command import kv_object, kv_objects, kv_size, refusal

CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "hidden_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
ESCAPE = "\x1b"
LONG = ("llama-3.1-8b", "gemma-3-27b", "--engine", "ideal,vllm", "--memory", "16GiB", "--weights", "5GB", "--chart")


class TestReading:
    def test_a_file_a_folder_and_stdin(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        (tmp_path / "other.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
        for path in (tmp_path, tmp_path / "config.json", tmp_path / "other.json"):
            assert kv_object(str(path))["kv_bytes"] == 64 * 64
        assert kv_object(str(tmp_path / "config.json"))["model"] == tmp_path.name
        assert kv_object(config=CONFIG)["model"] == "stdin"

    def test_bare_flags(self) -> None:
        found = kv_object("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "-t", "4096")
        assert (found["model"], found["kv_bytes"]) == ("flags", 512 << 20)
        assert found["fields"]["head_dim"] == {"value": 128, "origin": "--head-dim"}

    def test_a_name_in_the_models_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG))
        monkeypatch.setenv("GENX_MODELS", str(tmp_path))
        assert kv_object("mine")["kv_bytes"] == 64 * 64
        assert "no file, folder or preset" in refusal("../mine")

    @pytest.mark.parametrize("content", [b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"", b'{"a": 1e999}'])
    def test_content_that_is_no_configuration(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(content)
        refusal(str(path))
        result = kv_size("-", stdin=content)
        assert (result.status, result.stdout) == (2, b"")

    def test_control_characters_of_a_file_are_never_obeyed(self, tmp_path: Path) -> None:
        evil = {**CONFIG, "model_type": f"{ESCAPE}[2Jllama\n", "torch_dtype": f"{ESCAPE}]0;x"}
        for more in ((), ("--explain",), ("--json",)):
            assert ESCAPE not in kv_size(*more, config=evil).text
        assert ESCAPE not in kv_size(config={**CONFIG, "layer_types": [f"{ESCAPE}[2J"] * 2}).stderr
        folder = tmp_path / f"a{ESCAPE}[2Jb"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        assert ESCAPE not in kv_size(str(folder)).text


class TestHub:
    @pytest.fixture
    def endpoint(self) -> Iterator[str]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/owner/model/resolve/main/config.json"
                body = json.dumps(CONFIG).encode() if known else b"no"
                self.send_response(200 if known else 401 if "gated" in self.path else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            server.shutdown()

    def test_only_when_asked(self, endpoint: str) -> None:
        environment = {"HF_ENDPOINT": endpoint}
        assert "--hub" in refusal("owner/model")
        result = kv_size("owner/model", "--hub", "--json", environment=environment)
        assert json.loads(result.text)[0]["kv_bytes"] == 64 * 64

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("owner/absent", "404"),
            ("owner/gated", "with your account"),
            ("../etc/passwd", "OWNER/NAME"),
            ("x", "OWNER"),
        ],
    )
    def test_failures_are_one_line(self, endpoint: str, name: str, text: str) -> None:
        result = kv_size(name, "--hub", environment={"HF_ENDPOINT": endpoint})
        assert (result.status, result.stdout) == (2, b"")
        assert text in result.stderr

    def test_an_endpoint_that_is_none(self) -> None:
        for endpoint in ("file:///etc", "http://127.0.0.1:1"):
            assert kv_size("a/b", "--hub", environment={"HF_ENDPOINT": endpoint}).status == 2


SCHEMA = {
    "model": str, "model_type": str, "tokens": int, "batch": int, "mix": None, "kv_dtype": str, "engine": str,
    "engine_rule": str, "kv_bytes": int, "state_bytes": int, "total_bytes": int, "bytes_per_token": int,
    "floor_bytes": int, "full_bytes": int, "layers": list, "fields": dict, "positions": int,
    "encoder_tokens": int, "tp": int, "pp": int, "replicated": bool, "weights_bytes": None, "memory_bytes": int,
    "reserve_bytes": int, "fits": bool, "shortfall_bytes": int, "max_tokens": int, "max_batch": int,
    "max_mixes": None, "fit_table": list, "notes": list, "warnings": list,
}  # fmt: skip


class TestJson:
    def test_names_and_kinds_are_those_of_the_documentation(self) -> None:
        from genx.kv_size import report

        found = kv_object("llama-3.1-8b", "--memory", "1GiB")
        assert {name: None if value is None else type(value) for name, value in found.items()} == SCHEMA
        for name in SCHEMA:
            assert f"    {name}" in (report.__doc__ or "") or f", {name} " in (report.__doc__ or ""), name

    def test_without_memory_what_depends_on_it_is_null(self) -> None:
        found = kv_object("llama-3.1-8b")
        assert [name for name, value in found.items() if value is None] == [
            "mix", "weights_bytes", "memory_bytes", "reserve_bytes", "fits", "shortfall_bytes", "max_tokens",
            "max_batch", "max_mixes", "fit_table",
        ]  # fmt: skip

    def test_groups_add_up(self) -> None:
        found = kv_object("gemma-3-27b", "-t", "100k", "-b", "3")
        assert sum(group["kv_bytes"] for group in found["layers"]) == found["kv_bytes"]
        assert found["layers"][0] == {
            "kind": "sliding", "layers": 52, "kv_heads": 16, "key_size": 128, "value_size": 128, "window": 1024,
            "shares_with": None, "positions": 3072, "kv_bytes": 52 * 3072 * 8192, "state_bytes": 0, "note": "",
        }  # fmt: skip

    def test_one_object_a_model_length_batch_type_and_engine_in_order(self) -> None:
        found = kv_objects(
            *("gpt2", "qwen3-4b", "-t", "5,3", "-b", "1,2", "--kv-dtype", "fp16,q8_0", "--engine", "full,ideal")
        )
        assert len(found) == 32
        keys = [(f["model"], f["tokens"], f["batch"], f["kv_dtype"], f["engine"]) for f in found]
        assert keys[:3] == [
            ("gpt2", 5, 1, "fp16", "full"), ("gpt2", 5, 1, "fp16", "ideal"), ("gpt2", 5, 1, "q8_0", "full"),
        ]  # fmt: skip
        assert keys[-1] == ("qwen3-4b", 3, 2, "q8_0", "ideal")

    def test_csv(self) -> None:
        text = kv_size("gpt2", "qwen3-4b", "-t", "5", "--csv").text
        rows = list(csv.DictReader(io.StringIO(text)))
        assert tuple(rows[0]) == CSV_COLUMNS
        assert [(row["model"], row["kv_bytes"], row["fits"]) for row in rows] == [
            ("gpt2", "184320", ""), ("qwen3-4b", "737280", ""),
        ]  # fmt: skip
        assert "--csv" in refusal("gpt2", "--csv", "--json")


class TestPeople:
    def test_a_table_and_two_lines(self) -> None:
        assert kv_size("llama-2-7b", "-t", "4k").text == (
            "+------------+--------+-------+----------+--------+----------+---------------+------------+\n"
            "| model      | tokens | batch | kv-dtype | engine | kv cache |         bytes |    a token |\n"
            "+------------+--------+-------+----------+--------+----------+---------------+------------+\n"
            "| llama-2-7b |  4,096 |     1 |     fp16 |  ideal | 2.00 GiB | 2,147,483,648 | 512.00 KiB |\n"
            "+------------+--------+-------+----------+--------+----------+---------------+------------+\n"
            "\n"
            "llama-2-7b: num_hidden_layers 32, explicit; num_key_value_heads 32, explicit; "
            "head_dim 128, hidden_size 4096 / num_attention_heads 32\n"
            "  = 32 full x 4,096 x 2 x 32 x 128 x 2 bytes = 2,147,483,648 bytes\n"
        )

    def test_models_are_sorted_by_size(self) -> None:
        lines = kv_size("llama-2-7b", "gemma-2b", "qwen3-4b", "-t", "2k").text.splitlines()
        assert [line.split()[1] for line in lines[3:6]] == ["gemma-2b", "qwen3-4b", "llama-2-7b"]

    def test_everything_with_explain(self) -> None:
        text = kv_size("gemma-3-4b", "-t", "3k", "--engine", "vllm", "--explain").text
        for line in (
            "    1 x 3,072 tokens",
            "    block size 16, batched tokens 8,192",
            "    head_dim 256, explicit",
            "    29 sliding: 4 kv heads x (256 + 256), window 1,024, 3,088 positions, 361.88 MiB, 1 padding layers",
            "  fp16: 16 bits an element",
            "  = 29 sliding 379,453,440 + 5 full x 3,072 x 4,096 bytes = 442,368,000 bytes",
        ):
            assert line in text.splitlines() or any(line in shown for shown in text.splitlines()), line

    def test_a_chart_with_the_weights_and_the_memory(self) -> None:
        text = kv_size("llama-3.1-8b", "-t", "128k", "--memory", "24GiB", "--weights", "8GiB", "--chart").text
        title, *bars = text[text.index("llama-3.1-8b, ideal") :].splitlines()
        assert title == ("llama-3.1-8b, ideal, batch 1: # cache, = weights and reserve, | memory 24.00 GiB")
        assert bars[-1].startswith("131,072 ")
        drawn = bars[-1].split(" ", 1)[1]
        assert drawn.count("=") * 2 == drawn.count("#") + 1  # 8 and 16 GiB of 24, the last cell under the line
        assert drawn.endswith("| 24.00 GiB")

    def test_a_chart_is_drawn_for_one_model_with_memory_and_can_be_left_out(self) -> None:
        asked = ("llama-3.1-8b", "--memory", "24GiB")
        assert "# cache" in kv_size(*asked).text
        assert "# cache" not in kv_size(*asked, "--no-chart").text
        assert "# cache" not in kv_size("llama-3.1-8b").text
        assert "# cache" in kv_size("llama-3.1-8b", "--chart").text


class TestTerminals:
    @pytest.mark.parametrize("columns", [*range(1, 21), 40, 80, 200])
    def test_any_width_shows_every_number(self, columns: int) -> None:
        """Textualize/rich#4214: a division by zero in a narrow console."""
        result = kv_size(*LONG, environment={"COLUMNS": str(columns)})
        assert result.status == 1
        assert result.stderr == ""
        assert "11,173,625,856" in result.text
        assert "17,179,869,184" in result.text

    def test_columns_0_means_that_nobody_knows(self) -> None:
        """rhel-lightspeed/command-line-assistant PR #421; rich itself prints nothing at all."""
        narrow = kv_size("gpt2", environment={"COLUMNS": "0"})
        assert narrow.text == kv_size("gpt2", environment={"COLUMNS": "80"}).text
        assert "37,748,736" in narrow.text

    def test_a_terminal_of_no_columns(self) -> None:
        result = run_genx_at_terminal("kv-size", "gpt2", columns=0, environment={"COLUMNS": ""})
        assert "37,748,736" in result.text

    @pytest.mark.parametrize(
        "environment", [{}, {"FORCE_COLOR": "1"}, {"CLICOLOR_FORCE": "1"}, {"TTY_COMPATIBLE": "1"}, {"COLUMNS": "30"}]
    )
    def test_pipes_get_no_escape_codes_and_nothing_but_ascii(self, environment: dict[str, str]) -> None:
        for more in ((), ("--explain",), ("--json",), ("--csv",)):
            text = kv_size(*LONG, *more, environment=environment).text
            assert ESCAPE not in text
            assert text.isascii()

    def test_a_terminal_gets_lines_and_colour_unless_it_asks_for_none(self) -> None:
        shown = run_genx_at_terminal("kv-size", "llama-3.1-8b", "--memory", "1GiB", columns=200)
        assert ESCAPE in shown.text
        plain = run_genx_at_terminal(
            "kv-size", "llama-3.1-8b", "--memory", "1GiB", "--ascii", columns=200, environment={"NO_COLOR": "1"}
        )
        assert ESCAPE not in plain.text
        assert plain.text.isascii()

    def test_a_dumb_terminal(self) -> None:
        shown = run_genx_at_terminal("kv-size", "gpt2", columns=200, environment={"TERM": "dumb"})
        assert ESCAPE not in shown.text


class TestStarting:
    def test_it_imports_neither_torch_nor_what_it_does_not_print_with(self) -> None:
        code = (
            "import sys; sys.argv = ['genx', 'kv-size', 'gpt2', '--json']\n"
            "from genx.__main__ import main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'safetensors', 'rich', 'jinja2'}\n"
            "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)[0]["kv_bytes"] == 37748736
        assert done.stderr == "[]\n"

    def test_as_a_process(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "genx", "kv-size", "llama-3.1-8b", "--memory", "16GiB", "--weights", "1"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, "")
        assert "does not fit: 1 bytes (1 B) short" in done.stdout
