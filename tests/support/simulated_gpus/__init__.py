"""Training jobs on simulated GPUs in virtual time, with the probe's real step engine and timer.

`virtual_gpus` simulates hosts, streams and what ranks do together; `training_scripts` are the loops
of ten strategies, with the marks of the probe's hooks; `probed_jobs` runs them under the probe and
returns what it recorded beside what the devices really did.
"""
