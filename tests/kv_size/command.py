"""`genx kv-size` in this process, and what it printed."""

import json
from collections.abc import Mapping
from typing import Any

from tests.cli.in_process import Result, run_genx


def kv_size(*arguments: str, config: Mapping[str, Any] | None = None, **options: Any) -> Result:
    """Run the command; `config` is given on stdin."""
    if config is None:
        return run_genx("kv-size", *arguments, **options)
    return run_genx("kv-size", "-", *arguments, stdin=json.dumps(config).encode(), **options)


def kv_objects(*arguments: str, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """What `--json` says; the command must succeed, or say that something does not fit."""
    result = kv_size(*arguments, "--json", config=config)
    assert result.status in (0, 1), result.stderr
    found: list[dict[str, Any]] = json.loads(result.text)
    return found


def kv_object(*arguments: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The only object of `--json`."""
    (found,) = kv_objects(*arguments, config=config)
    return found


def refusal(*arguments: str, config: Mapping[str, Any] | None = None) -> str:
    """What the command says when it refuses: exit code 2, one line, nothing on stdout."""
    result = kv_size(*arguments, config=config)
    assert (result.status, result.stdout) == (2, b""), result
    assert result.stderr.startswith("genx: error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("genx: error: ").rstrip("\n")
