"""The program `zonogpt`, also as `python -m zonogpt`."""

import sys


def main() -> None:
    """Ctrl-C is quiet from here on, while the command line itself is imported too."""
    try:
        from zonogpt.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
