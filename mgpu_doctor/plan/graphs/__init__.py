"""One training step of a user's TensorFlow model, as the graph that TensorFlow makes of it.

weights    variables without contents, so that a model of any size can be traced
target     what the user's function returned
step       the step, traced or run
recomputing  layers that are computed again in backward
flattened  its graph, function calls put in line, as nodes of analysis.memory.liveness
ops        what kinds of operations do with memory
running    a real step on the CPU, its peak told by TensorFlow's own allocator
"""
