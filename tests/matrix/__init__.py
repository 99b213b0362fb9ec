"""End-to-end checks in fresh environments of other versions: `make matrix`.

`environments` says which and makes them, `checks` has the checks, `verdicts` judges what came of
them, `page` keeps the results and writes docs/compatibility.md. Only `__main__` starts anything.
"""
