"""One training step of the user's model, watched: a program of its own, as it imports torch.

    python -m mgpu_doctor.plan.tracing module:function

Reads a line of JSON a request (settings) and answers with a line of JSON (wire.py).
"""
