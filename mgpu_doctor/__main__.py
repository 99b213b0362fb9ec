"""`python -m mgpu_doctor`."""

from mgpu_doctor.cli import main

main()
