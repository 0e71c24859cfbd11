"""zonogpt-check CERTIFICATE MODEL: 0 and "valid", 1 and the first line that does not hold, 2 if unreadable."""

from __future__ import annotations

import sys
from pathlib import Path

from zonogpt_check import __version__
from zonogpt_check.check import check
from zonogpt_check.sets import InvalidError, UnreadableError

USAGE = "usage: zonogpt-check CERTIFICATE MODEL_DIRECTORY"


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given in (["-h"], ["--help"], ["--version"]):
        print(f"zonogpt-check {__version__}" if given == ["--version"] else f"{USAGE}\n\n{__doc__}")
        return 0
    if len(given) != 2:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        said = check(*map(Path, given))
    except InvalidError as error:
        print(f"invalid\n{error}")
        return 1
    except UnreadableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"valid\n{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
