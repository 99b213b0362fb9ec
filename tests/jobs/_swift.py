"""Loads torch while Python's garbage collection rests: it takes a quarter of the time for nothing.

A script that imports this first starts a second earlier.
"""

import gc
from importlib import import_module


def load(module: str) -> None:
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.enable()


load("torch")
