"""Compiles the device in the folder that is given."""

import sys

from tests.support.pretend_accelerator import load

load(sys.argv[1])
