# make demo: from nothing to a class-wise answer.   make test: all tests and checks.
# make environments: all that the tests need, without running them.
# make test-flower: the tests on Flower, in an environment of its own, which `make test` runs too.
# make test-ray: those of the Ray engine, which `make test` runs too.
# make test-deploy: methods and faults in real federations on this machine, which takes 12 to 15 minutes.
# make test-gpu: what only a CUDA GPU can show.      make bench: races, on a quiet machine.
# make results: the pages that are made of docs/results/raw, anew.
# make docs: the documentation as a site, in build/site. make notebook: docs/first-steps.ipynb, executed anew.
# make lock: constraints.txt anew, with the newest releases of everything but PyTorch.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Flower's bounds (typer, rich, protobuf, Ray) are not those of the other extras.
FLOWER := .venv-flower
RAY := tests/engines/test_ray.py
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# None of the many processes that tests start should have to compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Moved by hand: the numbers that tests and docs hold were made with it.
TORCH := 2.13.0
# The versions of constraints.txt, also in pip's build environment: before pip 25.3 by the first, since by the second.
# Python compiles a module when it is first imported: half of an installation's time was for modules that never are.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-compile

TWO_AT_ONCE := --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: demo test environments tests test-flower test-ray test-deploy test-gpu check docs notebook browser bench bench-peers gallery results format lock clean

# A learning rate that suits most of these methods (docs/results/tuned-study.md).
demo: $(VENV)/library
	$(BIN)/unskew compare fedavg fedprox fedlc fedntd fedlmd fedvls steady --dataset digits --skew dirichlet:0.05 \
	  --clients 10 --cohort 3 --rounds 30 --epochs 3 --lr 0.02 --seeds 1,2,3

# Flower's tests, Ray's, the checks and the docs run beside the tests: alone, each leaves a core idle now and then. What they say
# comes in one piece where make can do that; the tests tell as they go, for which the + stands.
test: environments
	$(MAKE) $(TWO_AT_ONCE) tests test-flower test-ray check docs

environments:
	$(MAKE) $(TWO_AT_ONCE) $(VENV)/development $(FLOWER)/development browser

tests: $(VENV)/development
	+$(BIN)/pytest -n 2 --dist worksteal -p no:logging --ignore $(RAY)

# They wait for the processes of a cluster most of the time.
test-ray: $(VENV)/development
	$(BIN)/pytest -p no:logging -p no:cacheprovider $(RAY)

# Flower's typer warns of what it takes from click. Each file has its federation: in their order, those that wait most first.
test-flower: $(FLOWER)/development
	$(FLOWER)/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder -p no:cacheprovider -W ignore::DeprecationWarning:typer tests/flower

# One federation after another: several would share the cores.
test-deploy: $(FLOWER)/development
	$(FLOWER)/bin/pytest -p no:cacheprovider -W ignore::DeprecationWarning:typer tests/deploy

test-gpu: $(VENV)/development
	$(BIN)/pytest tests/gpu

bench: bench-peers
	$(BIN)/unskew bench --out benchmarks/results
	$(BIN)/python -m benchmarks.race

bench-peers: $(VENV)/development
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
gallery: $(VENV)/development
	$(BIN)/python docs/gallery/build.py "$${UNSKEW_DATA:?is the folder with the datasets}"

results: $(VENV)/development
	for each in build steady published study; do $(BIN)/python docs/results/$$each.py || exit; done

check: $(VENV)/development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every link and anchor has to lead somewhere, and nothing may come from a network.
docs: $(VENV)/development
	$(BIN)/python docs/site/build.py

notebook: $(VENV)/development
	$(BIN)/python docs/notebook.py

format: $(VENV)/development
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(BIN)/python
	$(BIN)/pip install --quiet --upgrade uv
	printf '%s\n' torch==$(TORCH) hatchling editables | $(BIN)/uv pip compile pyproject.toml - --extra dev \
	  --universal --python-version 3.11 --fork-strategy fewest --upgrade --no-annotate \
	  --custom-compile-command 'make lock' --output-file constraints.txt --quiet
	printf '%s\n' torch==$(TORCH) hatchling editables | $(BIN)/uv pip compile pyproject.toml - --extra flower-dev \
	  --universal --python-version 3.11 --fork-strategy fewest --upgrade --no-annotate \
	  --custom-compile-command 'make lock' --output-file constraints-flower.txt --quiet

# What unskew needs, and all that its development needs; the second includes the first.
$(VENV)/library: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	touch $@

$(VENV)/development: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/library

$(FLOWER)/development: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	PIP_CONSTRAINT=constraints-flower.txt PIP_BUILD_CONSTRAINT=constraints-flower.txt \
	  $(FLOWER)/bin/pip install --quiet --no-compile --editable '.[flower-dev]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(FLOWER) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
