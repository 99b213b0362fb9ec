"""One training step of the user's model, watched: a program of its own, as it imports torch.

    python -m mgpu_doctor.plan.tracing module:function

Forks a process for each connection that it is given (children.py), which reads a line of JSON a
request (settings) there, and answers with a line of JSON (wire.py).
"""
