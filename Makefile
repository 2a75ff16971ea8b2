# Two commands for a newcomer: `make quickstart` and `make test`. Both need Python 3.11+ only.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: quickstart test lint types sinusoid clean

quickstart: $(INSTALLED)
	$(BIN)/metamirror quickstart

test: lint types
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# The README's first result: fixed seeds, so that the same machine gives the same numbers.
SINUSOID := maml metasgd metacurvature mtnet metakfo warpgrad ecml blockiaf gradnet anil

sinusoid: $(addprefix results/sinusoid/,$(addsuffix .json,$(SINUSOID)))

results/sinusoid/%.json: | $(INSTALLED)
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 $(BIN)/metamirror train --config configs/sinusoid.toml --method $* --resume \
		--out runs/sinusoid/$*
	OMP_NUM_THREADS=1 $(BIN)/metamirror evaluate runs/sinusoid/$* --json > $@.tmp
	mv $@.tmp $@

# How fast tasks are drawn beside a conv4 that learns them; METAMIRROR_HOME may hold the real data.
results/sampler.json: benchmarks/sampler.py | $(INSTALLED)
	$(BIN)/python benchmarks/sampler.py --out $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
