"""Real data without a download, as arrays: the interpreter's own text, and hand-written digits.

The digits are described, with authors and licence, in `digits/README.md`.
"""

import gzip
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mgpu_trainers.amount import CONTEXT, TRAINING_IMAGES, VALIDATION_WINDOWS

__all__ = ["CONTEXT", "TRAINING_IMAGES", "VALIDATION_WINDOWS", "characters", "digits"]


def characters() -> tuple[NDArray[np.int16], int]:
    """The language reference that Python's `help()` prints, as numbers; how many kinds it has."""
    from pydoc_data.topics import topics

    whole = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: index for index, character in enumerate(sorted(set(whole)))}
    return np.array([alphabet[each] for each in whole], dtype=np.int16), len(alphabet)


def digits() -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Images of 8 × 8 pixels from 0 to 1, and what each of them shows."""
    packed = (resources.files("mgpu_trainers") / "digits" / "digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode("ascii").splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return table[:, :64].reshape(-1, 8, 8) / np.float32(16), table[:, 64].astype(np.int64)
