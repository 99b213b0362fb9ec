"""Memory before launch: the user's own step traced, replayed, held against a device.

subject    what the user names: a model of theirs, a built-in one, a trainer
tracing    the subprocesses that run the step and watch its memory; torch is imported there alone
nursery    the one of them that loads torch and forks the others
worker     one of those, seen from outside
wire       what travels between the two
following  the best method that can follow the step: fake tensors, a small real run, a formula
planned    whether it fits, the largest batch, what would help
text, json how that is shown
"""
