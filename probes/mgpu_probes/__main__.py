"""Runs a script or module with the probe: `python -m mgpu_probes script.py …`, `… -m module …`."""

from __future__ import annotations

import os
import runpy
import sys

from . import auto

USAGE = "usage: python -m mgpu_probes [-m MODULE | SCRIPT] [ARGUMENTS...]"


def main(arguments: list[str]) -> int:
    """Runs the given script or module in this process. Returns 2 if none is given."""
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        print(USAGE, file=sys.stderr)
        return 2
    auto()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
