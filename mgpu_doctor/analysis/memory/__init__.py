"""A device's memory before launch: what a traced step takes, and what would make it take less.

stream       what a step allocates and frees, in order
settings     how a job is meant to run: what is traced, and what is done to the trace
blocks, allocator, expandable   torch's caching allocator
bfc          TensorFlow's
replay       a stream played through one of them
liveness     a graph's stream: who makes each buffer, and who uses it last
composition  what the peak is made of, the peak of each phase
edits        streams changed; batches, losses, states, layers, distributed: the formulas
traces       a plan's stream: traced, or made from its nearest relative
constants, gpus   what is on a device beside, and how much it holds
predict      a plan's memory, the largest batch that fits
variants, fix, fixes, tffixes, advice   what helps, by how much, and the cheapest set that fits
"""
