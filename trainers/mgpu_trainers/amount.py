"""How much data there is, before anything is loaded. Imports no framework."""

CONTEXT = 64
"""Characters that the text model sees at once."""

VALIDATION_WINDOWS = 128
TRAINING_IMAGES = 1500


def samples(model: str) -> int:
    """Samples that a model is trained on; those of the text depend on the version of Python."""
    if model == "cnn-nano":
        return TRAINING_IMAGES
    from pydoc_data.topics import topics

    characters = sum(map(len, topics.values())) + len(topics) - 1
    return (characters - VALIDATION_WINDOWS * CONTEXT - 2) // CONTEXT
