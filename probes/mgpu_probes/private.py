"""Loads the in-process probe under the same private package name as the injected `sitecustomize`,
so that a process never gets two probes."""

from __future__ import annotations

import os
import runpy
import sys


def install() -> bool:
    """Installs the probe. False if it is installed already, or if MGPU_DOCTOR_BOXES is not set."""
    if "_mgpu_probe" in sys.modules or not os.environ.get("MGPU_DOCTOR_BOXES"):
        return False
    inject = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
    load = runpy.run_path(os.path.join(inject, "sitecustomize.py"), run_name="mgpu_probes.inject")
    load["probe"](inject)
    return "_mgpu_probe" in sys.modules
