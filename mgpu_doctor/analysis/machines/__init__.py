"""The hosts of a job: which GPU each rank uses, how GPUs are connected, who competes for CPU."""
