"""A fuzzer: damaged and hostile files of every kind that the doctor reads, on its command line.

    python -m tests.fuzz --format boxes --count 5000 --seed 7

makes 5000 mutated inputs from honest ones, runs the command line on each in a process of its own,
and holds what it did against what `docs/security.md` promises (`verdict`). An input depends on
format, seed and index alone, so that each failure has one command that repeats it.
"""
