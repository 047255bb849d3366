"""The real tokenizer, where it is."""

from pathlib import Path

import pytest

from genx.checkpoint import resolve_model
from genx.errors import GenxError


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M as scripts/fetch_smollm2 lays it out, or skip."""
    try:
        return resolve_model("smollm2-135m")
    except GenxError as error:
        pytest.skip(str(error))
