"""Real data without a download, as arrays: the interpreter's own text, and hand-written digits.

How much there is, is known without loading it. Imports no framework, and numpy only to load. The
digits are described, with authors and licence, in `digits/README.md`.
"""

import gzip
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONTEXT = 64
"""Characters that the text model sees at once."""

VALIDATION_WINDOWS = 128
"""Windows of text that are held back."""

TRAINING_IMAGES = 1500
"""Images that are trained on, of 1797."""


def count_samples(model: str) -> int:
    """Samples that a model is trained on; those of the text depend on the version of Python."""
    if model == "cnn-nano":
        return TRAINING_IMAGES
    from pydoc_data.topics import topics

    characters = sum(map(len, topics.values())) + len(topics) - 1
    return (characters - VALIDATION_WINDOWS * CONTEXT - 2) // CONTEXT


def load_characters() -> tuple["NDArray[np.int16]", int]:
    """The language reference that Python's `help()` prints, as numbers; how many kinds it has."""
    from pydoc_data.topics import topics

    import numpy as np

    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    return np.array([alphabet[character] for character in text], dtype=np.int16), len(alphabet)


def load_digits() -> tuple["NDArray[np.float32]", "NDArray[Any]"]:
    """Images of 8 × 8 pixels from 0 to 1, and what each of them shows."""
    import numpy as np

    packed = (resources.files("mgpu_trainers") / "digits" / "digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode("ascii").splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return table[:, :64].reshape(-1, 8, 8) / np.float32(16), table[:, 64].astype(np.int64)
