"""How the library's arguments are spelled at the terminal."""

from collections.abc import Mapping

# Arguments whose flag is not simply their name with dashes.
_FLAGS: Mapping[str, str] = {
    "x": "the prompt",
    "prompt": "PROMPT",
    "do_sample": "--sample",
    "use_cache": "--cache",
    "input_ids": "--ids",
}


def spell_flag(name: str) -> str:
    """The flag that sets an argument of the library: `top_p` is `--top-p`."""
    return _FLAGS.get(name, "--" + name.replace("_", "-"))
