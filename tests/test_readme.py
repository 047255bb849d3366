"""The README's commands are the ones that CI runs, and its tables are what is there."""

import re
from importlib import import_module
from pathlib import Path

from genx.models.registry import ARCHITECTURES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert commands[1] == (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]


def test_the_table_of_architectures_is_the_registry() -> None:
    rows = []
    for model_type, path in ARCHITECTURES.items():
        description = (import_module(path.partition(":")[0]).__doc__ or "").splitlines()[0]
        rows.append(f"| `{model_type}` | {description.rstrip('.')} |")
    assert "\n".join(rows) in README


def test_every_dependency_has_its_line() -> None:
    declared = re.search(r"^dependencies = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert declared is not None
    for name in re.findall(r'"([a-z0-9]+)', declared[1]):
        assert f"| {name} |" in README
