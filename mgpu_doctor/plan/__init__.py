"""Memory before launch: the user's own step traced, replayed, compared with a device.

subject      the model that the user names: their own, a built-in one, a trainer's
tracing      the processes that run the step and watch its memory; only they import a framework
fork_server  starts `tracing`, and a child of it for each step to trace
wire         the messages between these processes and the doctor
step_tracer  traces a step by the best method that works: fake tensors, a small real run, a formula
planned      the plan: whether the step fits, the largest batch, the fixes
plan_text, plan_json   show it
"""
