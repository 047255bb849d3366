"""Where a model is looked for, and what is said when it is not there."""

import sys
from pathlib import Path

import pytest

from genx.checkpoint import embedded_model, models_folder, resolve_model
from genx.errors import CheckpointError


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder, with two models and what else may lie there; the working folder is an empty one beside it."""
    root = tmp_path / "models"
    for name in ("beta", "alpha", ".partial", "notes"):
        (root / name).mkdir(parents=True)
        if name != "notes":
            (root / name / "config.json").write_text("{}")
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("GENX_MODELS", str(root))
    monkeypatch.chdir(tmp_path / "here")
    return root


def refusal(given: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve_model(given)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_path_comes_before_a_name(models: Path) -> None:
    assert resolve_model("alpha") == models / "alpha"
    Path("alpha").mkdir()
    assert resolve_model("alpha") == Path("alpha")
    assert resolve_model(models / "beta") == models / "beta"


def test_the_embedded_model_comes_after_the_models_folder(models: Path) -> None:
    assert resolve_model("storyteller") == embedded_model()
    (models / "storyteller").mkdir()
    (models / "storyteller" / "config.json").write_text("{}")
    assert resolve_model("storyteller") == models / "storyteller"


def test_a_name_may_have_parts(models: Path) -> None:
    (models / "org" / "model").mkdir(parents=True)
    assert resolve_model("org/model") == models / "org" / "model"


def test_a_missing_model_names_both_places_the_models_and_the_way_to_one(models: Path) -> None:
    assert refusal("gamma") == (
        f"there is no model gamma: {Path('gamma').absolute()} and {models / 'gamma'} do not exist; "
        f"models in {models}: alpha, beta; "
        "storyteller comes with genx; run scripts/fetch_smollm2 to get smollm2-135m, or give a Hugging Face folder or "
        "a GGUF file"
    )


def test_without_a_models_folder_there_are_none_yet(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENX_MODELS", str(models / "absent"))
    assert f"models in {models / 'absent'}: none yet; " in refusal("gamma")


@pytest.mark.parametrize("given", ["../models/gamma", "/models/gamma", "..\\gamma"])
def test_a_name_does_not_leave_the_models_folder(given: str, models: Path) -> None:
    assert "does not exist; models in" in refusal(given)


@pytest.mark.parametrize("given", ["x" * 5000, "\x1b[2J", "~nobody-has-this-name/x"])
def test_odd_names_are_refused_in_a_line(given: str, models: Path) -> None:
    assert refusal(given).startswith("there is no model ")


@pytest.mark.parametrize("given", ["", "a\0b"])
def test_what_is_no_name_at_all(given: str, models: Path) -> None:
    assert f"allowed: a path, or the name of one in {models}" in refusal(given)


def test_a_file_is_not_a_model(models: Path) -> None:
    file = models / "alpha" / "config.json"
    assert (
        refusal(str(file))
        == f"{file} is no GGUF file; give one, or the folder with config.json and model.safetensors in it"
    )


def test_a_gguf_file_is_a_model_by_its_path_its_name_or_its_folder(models: Path) -> None:
    for name in ("whole.gguf", "notes/only.gguf"):
        (models / name).write_bytes(b"GGUF")
    assert resolve_model(models / "whole.gguf") == models / "whole.gguf"
    assert resolve_model("whole") == resolve_model("whole.gguf") == models / "whole.gguf"
    assert resolve_model("notes") == models / "notes" / "only.gguf"
    assert "models in" in (said := refusal("gamma"))
    assert ": alpha, beta, notes, whole; " in said


def test_a_model_in_several_files_is_one(models: Path) -> None:
    for part in (1, 2):
        (models / "notes" / f"m-0000{part}-of-00002.gguf").write_bytes(b"GGUF")
    assert resolve_model("notes") == models / "notes" / "m-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/genx/models"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/genx/models"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/genx/models"),
        ("linux", {}, "/home/me/.cache/genx/models"),
        ("darwin", {"XDG_CACHE_HOME": "/cache"}, "/home/me/Library/Caches/genx/models"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/genx/models"),
        ("win32", {}, "/home/me/AppData/Local/genx/models"),
        ("linux", {"GENX_MODELS": "~/mine"}, "/home/me/mine"),
        ("linux", {"GENX_MODELS": ""}, "/home/me/.cache/genx/models"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the paths are written for POSIX")
def test_the_models_folder_of_each_platform(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GENX_MODELS", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert models_folder() == Path(expected)
