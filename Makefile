# make demo: from nothing to a class-wise answer.   make test: all tests and checks.
# make test-gpu: what only a CUDA GPU can show.      make bench: races, on a quiet machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-gpu check browser bench bench-peers gallery format clean

demo: $(VENV)/ready
	$(BIN)/unskew compare fedavg fedprox fedlc fedntd fedlmd fedvls --dataset digits --skew dirichlet:0.05 \
	  --clients 10 --cohort 3 --rounds 30 --epochs 3 --lr 0.05 --seeds 1,2,3

test: check browser
	$(BIN)/pytest -n 2 --dist worksteal

test-gpu: $(VENV)/ready
	$(BIN)/pytest tests/gpu

bench: bench-peers
	$(BIN)/unskew bench --out benchmarks/results
	$(BIN)/python -m benchmarks.race

bench-peers: $(VENV)/ready
	$(BIN)/python -m benchmarks.environments

# Debian's Chromium for the tests of the page, where this user may install it; without it they are skipped.
browser:
	@if ! command -v chromium > /dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get install -y -qq --no-install-recommends chromium > /dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null; } || \
	  echo "Chromium could not be installed: the tests of the page will be skipped."; \
	fi

# The pictures in docs/gallery, from runs on Fashion-MNIST in the folder UNSKEW_DATA.
gallery: $(VENV)/ready
	$(BIN)/python docs/gallery/build.py "$${UNSKEW_DATA:?is the folder with the datasets}"

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
