"""Runs the doctor's command line detached from the process that starts it.

`python -m mgpu_doctor.tui.jobs.detached_start DESCRIPTOR WORDS…` is started as the leader of its
own session. The doctor runs in its child, which outlives the parent. Its messages go to
DESCRIPTOR (the first line is its pid); standard error, which the job inherits, stays as it is.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    voice = int(sys.argv[1])
    if os.fork():
        os._exit(0)
    os.set_inheritable(voice, False)
    sys.stderr = os.fdopen(voice, "w", 1, encoding="utf-8", errors="backslashreplace")
    sys.stderr.write(f"{os.getpid()}\n")
    sys.argv = ["mgpu-doctor", *sys.argv[2:]]
    runpy.run_module("mgpu_doctor", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
