"""Installs the probe in every Python process of a job, then runs the user's own `sitecustomize`.

`mgpu-doctor run` puts this folder first on PYTHONPATH. The folder holds nothing else, so that the
program cannot import other modules of the doctor by accident. Without MGPU_DOCTOR_BOXES in the
environment no probe is installed.
"""

import os
import sys


def probe(folder: str) -> None:
    """Imports the in-process package beside `folder` under a private name and installs the
    probe."""
    if sys.version_info < (3, 10) or not os.environ.get("MGPU_DOCTOR_BOXES"):
        return
    from importlib.machinery import ModuleSpec, SourceFileLoader  # frozen: costs nothing

    name = "_mgpu_probe"
    if name in sys.modules:
        return
    home = os.path.join(os.path.dirname(folder), "inprocess")
    loader = SourceFileLoader(name, os.path.join(home, "__init__.py"))
    spec = ModuleSpec(name, loader, origin=loader.path, is_package=True)
    spec.submodule_search_locations = [home]
    package = type(sys)(name)
    package.__spec__, package.__path__, package.__package__ = spec, [home], name
    package.__file__, package.__loader__ = loader.path, loader
    sys.modules[name] = package
    loader.exec_module(package)
    from _mgpu_probe.bootstrap import (  # type: ignore[import-not-found]  # made just above
        install,
    )

    install()


def _make_way() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    try:
        probe(folder)
    except Exception:  # there is no box yet to report it, and the program must not notice
        sys.modules.pop("_mgpu_probe", None)
    sys.path_importer_cache.pop(folder, None)
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")  # the user's own; if there is none, the usual ImportError


if __name__ == "sitecustomize":
    _make_way()
