"""Runs the GPU tests on this machine's first GPU: `make test-gpu`.

    python -m tests.gpu [PYTEST OPTION…]

Without a GPU it says so in one sentence and exits with 3: a skipped test is no test that passed.
"""

import os
import sys

from tests.gpu.gpu_environment import FOLDER_VARIABLE, ROOT, NoGpuError, describe_gpu, folder_of
from tests.gpu.gpu_environment import importable as with_packages

NO_GPU = 3


def main() -> None:
    try:
        device = describe_gpu()
    except NoGpuError as reason:
        print(reason, file=sys.stderr)
        sys.exit(NO_GPU)
    folder = os.environ.get(FOLDER_VARIABLE) or str(folder_of(device))
    os.makedirs(folder, exist_ok=True)
    environment = with_packages(os.environ) | {FOLDER_VARIABLE: folder}
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--durations=15", *sys.argv[1:]]
    os.chdir(ROOT)
    os.execvpe(sys.executable, [*command, "tests/gpu"], environment)


if __name__ == "__main__":
    main()
