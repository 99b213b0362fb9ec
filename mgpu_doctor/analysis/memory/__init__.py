"""A device's memory before launch: the allocator simulated, its peak taken apart, what helps."""
