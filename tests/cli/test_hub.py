"""-m with an id of the hub, against a hub on 127.0.0.1 that counts what it is asked for."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from genx.checkpoint import hub
from genx.checkpoint.hub import HubId, download_model, parse_hub_id
from genx.errors import CheckpointError
from tests.architectures import make_tiny
from tests.cli.in_process import Result, run_genx
from tests.fixtures.gguf_files import convert_to_gguf

COMMIT = "1" * 40
FOLDER, FILE = "org/folder", "org/file"


class Hub:
    """Repositories by name, and the paths of files that were downloaded."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.downloaded: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: http.server.BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlparse(request.path).path)
        headers: dict[str, str] = {}
        status, content = 404, b"{}"
        for name, files in self.repositories.items():
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                siblings = [{"rfilename": file} for file in files]
                status, content = 200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()
            elif path in (f"/api/models/{name}/tree/{COMMIT}", f"/api/models/{name}/tree/main"):
                status, content = 200, json.dumps([_entry(file, data) for file, data in files.items()]).encode()
            elif path.startswith(f"/{name}/resolve/") and path.partition(f"/resolve/{COMMIT}/")[2] in files:
                file = path.partition(f"/resolve/{COMMIT}/")[2]
                status, content = 200, files[file]
                headers = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": COMMIT}
                self.downloaded += [file] if body else []
            elif path.startswith((f"/api/models/{name}/", f"/{name}/")):
                headers = {"X-Error-Code": "RevisionNotFound"}
        if status == 404 and not headers:
            headers = {"X-Error-Code": "RepoNotFound"}
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content)), "Content-Type": "application/json"}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(content)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _entry(file: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, bytes]]:
    tiny = make_tiny("llama", tmp_path_factory.mktemp("tiny")).folder
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    gguf = convert_to_gguf(tiny, tiny.parent / "tiny.gguf").read_bytes()
    unwanted = {"pytorch_model.bin": b"x", "consolidated.safetensors": b"x", "README.md": b"x"}
    return {
        FOLDER: {**files, **unwanted},
        FILE: {"tiny.gguf": gguf, "README.md": b"x"},
        "org/several": {"a.gguf": gguf, "b.gguf": gguf},
        "org/none": {"README.md": b"x"},
    }


@pytest.fixture
def server(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    server = Hub(repositories)
    yield server
    server.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def genx(*arguments: str, address: str, cache: Path, **environment: str) -> Result:
    """The program in a process of its own: huggingface_hub reads its settings once."""
    done = subprocess.run(
        [sys.executable, "-m", "genx", *arguments],
        capture_output=True,
        check=False,
        cwd=cache.parent,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GENX_"))},
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "GENX_MODELS": str(cache.parent / "none"),
            "HF_ENDPOINT": address,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **environment,
        },
    )
    return Result(done.returncode, done.stdout, done.stderr.decode())


def test_only_what_is_needed_is_downloaded_once_and_then_works_offline(server: Hub, cache: Path) -> None:
    said = f"genx: there is no path {FOLDER}; asking the Hugging Face hub for it\n"
    result = genx("inspect", FOLDER, address=server.address, cache=cache)
    assert (result.status, result.stderr) == (0, said)
    assert "model          org/folder\n" in result.text
    assert "parameters     41,364\n" in result.text
    assert sorted(server.downloaded) == sorted(
        name for name in server.repositories[FOLDER] if name.endswith(".json") or name == "model.safetensors"
    )
    before = list(server.downloaded)
    assert genx("inspect", f"{FOLDER}@main", address=server.address, cache=cache).status == 0
    assert server.downloaded == before
    offline = genx("inspect", FOLDER, address="http://127.0.0.1:1", cache=cache, HF_HUB_OFFLINE="1")
    assert (offline.status, offline.text) == (0, result.text)


def test_a_repository_with_one_gguf_file(server: Hub, cache: Path) -> None:
    result = genx("inspect", FILE, "--json", address=server.address, cache=cache)
    assert result.status == 0, result.stderr
    assert json.loads(result.text)["format"] == "GGUF"
    assert server.downloaded == ["tiny.gguf"]


def refused(result: Result) -> str:
    assert (result.status, result.stdout) == (1, b"")
    asking, error = result.stderr.splitlines()
    assert asking.endswith("asking the Hugging Face hub for it")
    assert error.startswith("genx: error: ")
    return error


def test_several_or_no_weights_are_one_line(server: Hub, cache: Path) -> None:
    several = refused(genx("inspect", "org/several", address=server.address, cache=cache))
    assert (
        "org/several has 2 files that could be the weights: a.gguf, b.gguf; download one with: hf download" in several
    )
    assert "org/none has no weights that genx reads" in refused(
        genx("inspect", "org/none", address=server.address, cache=cache)
    )


def test_an_id_that_the_hub_does_not_know(server: Hub, cache: Path) -> None:
    error = refused(genx("inspect", "org/absent", address=server.address, cache=cache))
    assert "there is no path org/absent, and the hub does not give a model of that name" in error
    error = refused(genx("inspect", f"{FOLDER}@nothing", address=server.address, cache=cache))
    assert "the hub's org/folder has no revision nothing" in error


def test_offline_with_nothing_cached_is_one_line(cache: Path) -> None:
    error = refused(genx("run", "-m", FOLDER, "hi", address="http://127.0.0.1:1", cache=cache, HF_HUB_OFFLINE="1"))
    assert f"{FOLDER} is not whole in {cache / 'hub'}, and HF_HUB_OFFLINE forbids to ask the hub" in error


def test_a_hub_that_does_not_answer_is_one_line(cache: Path) -> None:
    error = refused(genx("run", "-m", FOLDER, "hi", address="http://127.0.0.1:1", cache=cache))
    assert f"{FOLDER} is not whole in {cache / 'hub'}, and the hub cannot be asked: " in error


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("org/name.v1@refs/pr/3", HubId("org/name.v1", "refs/pr/3")),
        *((given, None) for given in ("name", "a/b/c", "../x", "org/..", "/etc/passwd", "org/na me", "org/n@", "@x/y")),
    ],
)
def test_what_is_an_id(given: str, expected: HubId | None) -> None:
    assert parse_hub_id(given) == expected


def test_a_path_or_a_name_goes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENX_MODELS", str(tmp_path))
    monkeypatch.setattr(hub, "_snapshot", lambda *_: pytest.fail("the hub was asked"))
    make_tiny("llama", tmp_path / "org")
    result = run_genx("inspect", "org/llama")
    assert (result.status, result.stderr) == (0, "")


def test_names_that_are_patterns_stand_for_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        if len(asked) == 1:
            index = {"weight_map": {"a": "w[1]*.safetensors"}}
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        else:
            (tmp_path / "w[1]*.safetensors").write_bytes(b"")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert download_model(HubId("a/b")) == tmp_path
    assert asked[1] == ["w[[]1][*].safetensors"]


def test_an_index_that_says_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(CheckpointError, match="has no weight_map"):
        download_model(HubId("a/b"))
