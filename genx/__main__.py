"""The `genx` program; also `python -m genx`."""

import sys
import time


def main() -> None:
    """Run the command line of this process and end it with the exit code."""
    started = time.perf_counter()
    try:
        from genx.cli.app import program
        from genx.cli.terminal import Terminal

        status = program(sys.argv[1:], Terminal.of_process(started))
    except KeyboardInterrupt:  # while the imports above run; the program itself knows what to do about it
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
