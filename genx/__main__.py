"""The `genx` program; also `python -m genx`."""

import sys


def main() -> None:
    """Run the command line of this process and end it with the exit code."""
    from genx.cli.app import program
    from genx.cli.terminal import Terminal

    sys.exit(program(sys.argv[1:], Terminal.of_process()))


if __name__ == "__main__":
    main()
