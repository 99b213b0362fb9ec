"""A device's memory before launch: what a traced step needs, and what would reduce it.

stream         what a step allocates and frees, in order
stream_edits   the same step with another batch, optimizer or loss: formulas
memory_plan    how a job is meant to run
allocator, expandable_segments, bfc_allocator   torch's and TensorFlow's allocators, simulated
allocator_replay  a stream played through one of them: peaks, failures, what the peak is made of
liveness       a graph's stream: which operation makes each buffer, and which uses it last
distributed    what a strategy adds to a rank's memory, and what it shards
traced_streams  a plan's stream: traced, or derived from the nearest trace
device_memory  how much memory a GPU has, and what a rank holds besides its step
prediction     a plan's memory, and the largest batch that fits
fixes, fix_search  what reduces it, by how much, and the cheapest set that fits
"""
