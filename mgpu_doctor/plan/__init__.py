"""Memory before launch: the user's own step traced, replayed, compared with a device.

subject      what the user names: a model of theirs, a built-in one, a trainer
tracing      the processes that run the step and watch its memory; only they import a framework
fork_server  the process that loads the framework and forks those that trace
wire         the messages between them and the doctor
step_tracer  the best method that can trace the step: fake tensors, a small real run, a formula
planned      whether it fits, the largest batch, what would help
text, json   how that is shown
"""
