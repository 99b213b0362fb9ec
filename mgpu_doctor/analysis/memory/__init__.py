"""A device's memory before launch: the allocator simulated, what its peak is made of, what helps."""
