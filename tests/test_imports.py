"""Imports point one way, torch loads late, and the files keep to a readable size."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "genx"

RULES = {"errors", "messages", "sampling_args", "cache_rules", "config", "config_fields"}  # no torch in any of them

# What each part may import, besides itself.
ALLOWED = {
    "errors": set(),
    "messages": set(),
    "sampling_args": {"errors"},
    "cache_rules": set(),
    "config_fields": {"errors", "messages", "sampling_args"},
    "config": {"errors", "messages", "sampling_args", "config_fields"},
    "gguf": {"errors", "messages"},
    "core": RULES,
    "models": {*RULES, "core"},
    "kernels": {*RULES, "core"},
    "parallel": {*RULES, "core"},
    "checkpoint": {*RULES, "gguf", "core", "models", "parallel", "kernels"},
    "tokenization": {"errors", "messages", "config", "gguf"},
    "kv_size": {*RULES, "gguf"},
    "engine": {*RULES, "core", "models", "kernels", "parallel", "checkpoint", "tokenization"},
    "bench": {*RULES, "core", "models", "kernels", "checkpoint", "tokenization", "engine"},
}
# BaseModel.load and save are doors of the model, and what is behind them is checkpoint's.
EXCEPTIONS = {("core/base_model.py", "checkpoint")}
# `kv-size --verify` asks the model itself.
EXCEPTIONS |= {("kv_size/verify.py", "checkpoint"), ("kv_size/verify.py", "core")}


def imported_parts(file: Path) -> set[str]:
    parts: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("genx"):
            names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            parts.update(names)
        elif isinstance(node, ast.Import):
            parts.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("genx."))
    return parts - {"__version__"}


def files_of(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.exists() else sorted((PACKAGE / part).rglob("*.py"))


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part: str) -> None:
    for file in files_of(part):
        name = file.relative_to(PACKAGE).as_posix()
        found = {other for other in imported_parts(file) if (name, other) not in EXCEPTIONS}
        assert found <= ALLOWED[part] | {part}, name


def test_nothing_imports_the_command_line() -> None:
    for file in PACKAGE.rglob("*.py"):
        if file.relative_to(PACKAGE).parts[0] not in ("cli", "__main__.py"):
            assert "cli" not in imported_parts(file), file


def test_core_knows_no_model_by_name() -> None:
    from genx.models.registry import ARCHITECTURES

    names = {path.rpartition(":")[2] for path in ARCHITECTURES.values()}
    for file in (PACKAGE / "core").glob("*.py"):
        code = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
        assert not code & names, file


def test_importing_genx_imports_nothing_heavy() -> None:
    code = "import sys, genx; print(sorted({'torch', 'typer', 'rich', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
