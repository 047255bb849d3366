"""The parts of scripts/train_storyteller, which lie beside the script and not in an installed package."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
