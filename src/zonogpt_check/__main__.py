"""python -m zonogpt_check FILE MODEL: 0 and "valid", 1 and the first line that does not hold, 2 if unreadable."""

from __future__ import annotations

import sys
from pathlib import Path

from zonogpt_check.check import check
from zonogpt_check.sets import InvalidError, UnreadableError


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m zonogpt_check CERTIFICATE MODEL_DIRECTORY", file=sys.stderr)
        return 2
    try:
        said = check(*map(Path, arguments))
    except InvalidError as error:
        print(f"invalid\n{error}")
        return 1
    except UnreadableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"valid\n{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
