"""The command `mgpu-doctor`, also as `python -m mgpu_doctor`."""

import gc

GARBAGE_THRESHOLD = 10_000
"""New objects between two garbage collections. With Python's default of 700, loading a verb runs
sixty collections that free almost nothing."""


def main() -> None:
    """Entry point: nothing is loaded before the threshold is set."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    from mgpu_doctor.cli import main as run_verb

    run_verb()


if __name__ == "__main__":
    main()
