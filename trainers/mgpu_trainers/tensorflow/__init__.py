"""Trainers of TensorFlow 2 with Keras 3, one file per strategy."""

import os

# Both are read when TensorFlow and Keras load.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors, and not what it finds out
