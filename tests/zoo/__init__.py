"""Small scripts in the style of what people run, each run healthy and with faults: `make zoo`.

`scripts` holds them, `catalogue` says what each needs and what should come out, `ways` runs and
judges them, `page` writes the table of docs/frameworks-seen.md. Environments, verdicts and results
are those of `tests/matrix`. Only `__main__` starts anything.
"""
