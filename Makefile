# Every target makes and reuses .venv by itself; a fresh machine needs Python >= 3.10 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SLOW := $(BIN)/python -m pytest --timeout=600 $(UNTIL)
# Of CI: `.ci/again` tries once more, by itself, what failed; `--until MOMENT` ends the slow tests in time.
AGAIN ?=
UNTIL ?=

.PHONY: demo test test-slow test-browser test-gpu matrix zoo coverage texts man lint docs bench clean
.DEFAULT_GOAL := test

# torch comes first: packages that depend on it would otherwise pull in another build.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[torch,dev]'
	touch $@

DEMO := demo-run
demo: $(READY)
	@rm -rf $(DEMO)
	@echo "Training on 4 CPU ranks for half a minute. The loader of rank 2 is 40 ms slow on purpose;"
	@echo "the training script knows nothing of the doctor."
	@echo
	@OMP_NUM_THREADS=1 $(BIN)/mgpu-doctor train torch-ddp --ranks 4 --steps 120 --log-every 20 \
		--dir $(DEMO) --fault slow:rank=2,phase=input,ms=40
	@echo
	@echo "Try next:"
	@echo "  $(BIN)/mgpu-doctor top --replay $(DEMO)                 the same, as it happened (q quits)"
	@echo "  $(BIN)/mgpu-doctor report $(DEMO) -o report.html        a page for the ticket"
	@echo "  $(BIN)/mgpu-doctor explain straggler-input              what the finding means"
	@echo "  $(BIN)/mgpu-doctor run -- torchrun --nproc-per-node 4 your_script.py"

# Two processes more than a small machine has cores: tests also wait for screens and processes.
test: $(READY)
	$(AGAIN) $(BIN)/python -m pytest --processes 4

# Several tests need Ray, which takes as much room as torch. Where it cannot be had, they say so.
RAY := $(VENV)/.ray
$(RAY): $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check 'ray[train]>=2.40' && touch $@

# First property tests with many examples. Then jobs whose timing is judged, one at a time. Then, four at a time, what
# holds on a busy machine: slow tests that do not judge speed, which often wait; those that share jobs stay together.
test-slow: $(READY) $(RAY)
	@failed=0; set -x; \
	$(SLOW) -n 2 -m 'hypothesis and not slow' --hypothesis-profile=thorough || failed=1; \
	$(AGAIN) $(SLOW) -m 'slow and not untimed' tests/e2e tests/gpu || failed=1; \
	$(AGAIN) $(SLOW) -n 4 --dist loadgroup -m 'slow and untimed' || failed=1; \
	exit $$failed

# A machine that cannot get a browser is told so, and fails nothing.
test-browser: $(READY)
	@if browser=$$(.ci/browser $(VENV)/browser); then \
		MGPU_DOCTOR_TEST_BROWSER=$$browser $(BIN)/python -m pytest -m browser tests/browser; fi

# On a machine with an NVIDIA GPU, in less than 8 minutes. Needs a torch that is built for CUDA: where
# .venv has none, `make test-gpu GPU_PYTHON=python3` takes the Python that has, and installs nothing.
# Without a GPU it says so and fails.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(READY))
	$(GPU_PYTHON) -m tests.gpu

# Other versions of Python, PyTorch and TensorFlow, each in a fresh environment: hours, and several GB
# of disk at a time. `MATRIX` takes names and options: see `python -m tests.matrix --help`. With `--smoke`, as
# in CI, two checks of the oldest and the newest torch: a machine that cannot get one, or has no time for it
# (`--within SECONDS`), is told so, and fails nothing. A cap that the machine puts on versions does not apply to
# these environments.
MATRIX ?=
matrix: $(READY)
	$(BIN)/python -m tests.matrix $(MATRIX)

# Scripts in the style of what people run, healthy and with faults: half an hour. `ZOO` takes names and
# options: see `python -m tests.zoo --help`.
ZOO ?=
zoo: $(READY)
	$(BIN)/python -m tests.zoo $(ZOO)

# In one process: what child processes execute is not counted.
coverage: $(READY)
	$(BIN)/python -m coverage run -m pytest -q
	$(BIN)/python -m benchmarks.coverage_table

# What pins the texts of rules; read the difference before committing it.
texts: $(READY)
	$(BIN)/mgpu-doctor explain --markdown > docs/findings.md
	MGPU_DOCTOR_TEST_RECORD=1 $(BIN)/python -m pytest -q tests/doctor/rules/test_rule_texts.py

# For `man -l mgpu-doctor.1`, or for a folder `man1` of the manual path.
man: $(READY)
	$(BIN)/python -m mgpu_doctor.cli.man_page > mgpu-doctor.1

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site's generator is an extra, so that tests need not install it. Broken links fail the build.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/mgpu-doctor explain --markdown > docs/findings.md
	$(BIN)/zensical build --strict --clean

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(DEMO) mgpu-doctor.1 site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
