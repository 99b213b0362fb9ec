"""`mgpu-doctor` that stops a hung job after 8 s instead of 30, for jobs that hang for ever:
`python -m tests.support.impatient_doctor run --on-hang stop -- COMMAND`.

test_watched_hangs.py waits as long as a user does."""

import sys

from mgpu_doctor.cli import main
from mgpu_doctor.launch import hang_watchdog

LASTING = 8.0
"""More than `hang_watchdog.LEAST`: both alarms are raised, one after the other."""
IMPATIENT_DOCTOR = (sys.executable, "-m", "tests.support.impatient_doctor")

if __name__ == "__main__":
    hang_watchdog.LASTING = LASTING
    main()
