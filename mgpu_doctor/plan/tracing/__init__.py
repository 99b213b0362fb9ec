"""The processes that run one training step of the user's model and watch its memory.

    python -m mgpu_doctor.plan.tracing.tracing_server module:function

forks a process per connection, which reads a line of JSON per request (settings) and answers with
one (plan/wire.py). Only these processes import torch or TensorFlow.

user_function    the function that the user names, and its framework
torch_step       a PyTorch step with fake tensors, or run on the CPU
storage_watcher  the allocations of such a step
fake_devices     tensors that claim to be on a GPU
graph_step       a TensorFlow step, traced as a graph, or run
graph_nodes      that graph as nodes of analysis.memory.liveness
graph_run        a real step under TensorFlow's own GPU allocator
"""
