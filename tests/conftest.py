"""Fixtures that several test folders share."""

import signal
from pathlib import Path

import pytest
import torch

from genx.core.base_model import BaseModel
from tests.architectures import RECIPES, Tiny, make_tiny


@pytest.fixture(autouse=True, scope="session")
def _hears_ctrl_c() -> None:
    """A shell's job in the background ignores Ctrl-C, and so would the commands that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices are slower on several threads, and test processes run side by side.

    Set anew for each test: a command that is run within the process sets the number that it was asked for.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=RECIPES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Each architecture's tiny model in turn."""
    return make_tiny(request.param, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(tiny: Tiny) -> BaseModel:
    """genx's model of each architecture in turn, in float32."""
    return tiny.model()


@pytest.fixture(scope="session")
def tiny_folder(tiny: Tiny) -> Path:
    return tiny.folder
