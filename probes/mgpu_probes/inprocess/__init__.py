"""What runs inside a training rank. Standard library alone, Python >=3.10."""

BOXES_VARIABLE = "MGPU_DOCTOR_BOXES"
"""The environment variable that names the folder of black boxes; without it there is no probe."""
TREATMENTS_VARIABLE = "MGPU_DOCTOR_TREATMENTS"
"""The environment variable that names the treatments of this job and their values, a JSON object;
without it nothing is changed."""
BLOCKS_VARIABLE = "MGPU_DOCTOR_TREATMENT_BLOCKS"
"""The environment variable with the blocks of steps in which treatments are on and off,
JSON
`[first, length, inverted]`; without it they are always on. See `treatments.trial_blocks`."""
