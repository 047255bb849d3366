"""The README's commands are the ones that CI runs, and its map is the tree that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert commands[1] == (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
