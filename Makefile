# Two commands for a newcomer: `make quickstart` and `make test`. Both need Python 3.11+ only.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := $(VENV)/.peers

.PHONY: quickstart test test-slow lint types docs wheel-test release-check range sinusoid starts speed faults audit clean

quickstart: $(INSTALLED)
	$(BIN)/metamirror quickstart

test: lint types
	$(BIN)/python -m pytest

# What takes seconds each by its kind: kills, full disks, soaks, fuzzing, browsers, the site, the wheel.
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy

# The site, into site/: a broken link, an undocumented public name or any warning is an error.
# Not --quiet: mkdocs then forgets its warnings, and --strict has nothing to count.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel as a stranger gets it: into an empty environment, away from the repository.
wheel-test:
	rm -rf build && mkdir -p build/stranger
	$(PYTHON) -m venv build/venv
	build/venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir build/dist .
	build/venv/bin/python -m pip install --quiet --constraint constraints.txt build/dist/*.whl
	cd build/stranger && ../venv/bin/metamirror --version && ../venv/bin/metamirror quickstart --minutes 1

# What would be published, in dist/: built twice to the same bytes, with the contents and the size that it should have.
release-check: $(INSTALLED)
	$(BIN)/python tools/sbom.py --write
	$(BIN)/python tools/release.py --out dist

# One end of what pyproject.toml promises: make range PYTHON=python3.13 TORCH=2.15.0
# The core's tests, with the versions that pip then chooses: not those of constraints.txt.
TORCH ?= 2.6.0
range:
	$(PYTHON) -m venv build/range
	build/range/bin/python -m pip install --quiet "torch==$(TORCH)" ".[export,playground]" \
		hypothesis pytest pytest-timeout pytest-xdist scipy
	build/range/bin/python -m pytest --ignore tests/docs tests/methods/test_methods_table.py \
		tests/core/test_meta_gradient.py tests/training/test_resume.py tests/mirror_maps \
		tests/estimators/test_classifier.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# What docs/measured.md shows of sinusoids: fixed seeds, so that the same machine gives the same numbers.
SINUSOID := maml metasgd metacurvature mtnet metakfo warpgrad ecml blockiaf gradnet anil fomaml boil gap reptile mamlpp r2d2 \
	imaml ibaml metamd metalstm snail
# With lam = 1 / alpha one step is near the minimum that iMAML's gradient assumes; with lam = 1 training diverges.
METHOD_imaml := imaml:lam=100

sinusoid: $(addprefix results/sinusoid/,$(addsuffix .json,$(SINUSOID)))

results/sinusoid/%.json: | $(INSTALLED)
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 $(BIN)/metamirror train --config configs/sinusoid.toml --method $(or $(METHOD_$*),$*) --resume \
		--out runs/sinusoid/$*
	OMP_NUM_THREADS=1 $(BIN)/metamirror evaluate runs/sinusoid/$* --json > $@.tmp
	mv $@.tmp $@

# The starts that ship with the package; about half an hour a method on one core. gradnet's was trained for fewer
# tasks; blockIAF's is older than its default parametrisation, and had a learning rate of its own.
STARTS := blockiaf maml metasgd gradnet
OPTIONS_gradnet := --iterations 1000 --validate-every 250
OPTIONS_blockiaf := --method blockiaf:start=dual:parametrisation=standard:scale=bounded --geometry-lr 0.0005

starts: $(addprefix src/metamirror/starts/glyphs-,$(addsuffix /start.json,$(STARTS))) \
		src/metamirror/starts/sinusoid-metasgd/start.json src/metamirror/starts/photos/start.json
	$(BIN)/python tools/start_ranges.py
	$(BIN)/python benchmarks/starts.py
	$(BIN)/python benchmarks/pages.py --write

src/metamirror/starts/glyphs-%/start.json: configs/start-glyphs.toml | $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/metamirror train --config $< --method $* $(OPTIONS_$*) \
		--resume --out runs/starts/glyphs-$*
	$(BIN)/python tools/ship_start.py runs/starts/glyphs-$* $(@D)

src/metamirror/starts/sinusoid-%/start.json: configs/sinusoid.toml | $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/metamirror train --config $< --method $* --norm inductive --resume \
		--out runs/starts/sinusoid-$*
	$(BIN)/python tools/ship_start.py runs/starts/sinusoid-$* $(@D)

# The start for photographs: a network on the labels of miniImageNet's train classes, an hour of one core, then on
# tasks of them, half an hour, and a head on its features, minutes.
src/metamirror/starts/photos/start.json: | $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/metamirror pretrain --data mini-imagenet --image-size 84 --model conv4 --width 64 \
		--epochs 15 --autocast bf16 --norm inductive --val-tasks 50 --resume --out runs/starts/pretrained
	OMP_NUM_THREADS=1 $(BIN)/metamirror train --data mini-imagenet --image-size 84 --model conv4 --width 64 \
		--init runs/starts/pretrained --method r2d2 --augment flip --shots 5 --outer-lr 0.0003 --schedule cosine \
		--iterations 500 --validate-every 100 --val-tasks 60 --checkpoint-every 50 --resume --out runs/starts/photos-body
	$(BIN)/metamirror embed --backbone runs/starts/photos-body --data mini-imagenet --image-size 84 \
		--out runs/starts/photos.npz
	OMP_NUM_THREADS=1 $(BIN)/metamirror train --data arrays:runs/starts/photos.npz --model linear --method r2d2 \
		--shots 5 --tasks-per-step 32 --vectorize True --norm inductive --schedule cosine --adapts head \
		--val-tasks 300 --validate-every 300 --iterations 600 --resume --out runs/starts/photos
	$(BIN)/python tools/ship_start.py runs/starts/photos $(@D) runs/starts/photos-body

# How fast tasks are drawn beside a conv4 that learns them; METAMIRROR_HOME may hold the real data.
results/sampler.json: benchmarks/sampler.py | $(INSTALLED)
	$(BIN)/python benchmarks/sampler.py --out $@

# What docs/speed.md and docs/growth.md show. To be run on a machine that does nothing else; a campaign that was
# interrupted keeps the cases it has, and `python benchmarks/peers.py --help` measures single ones.
$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	touch $@

results/peers.json: benchmarks/peers.py benchmarks/peer_programs.py | $(PEERS)
	$(BIN)/python benchmarks/peers.py --shape omniglot,mini-imagenet --shots 1,5 --threads 1,2 --out $@
	$(BIN)/python benchmarks/peers.py --adapt --threads 1,2 --out $@
	$(BIN)/python benchmarks/peers.py --features linear,mlp --threads 1,2 --out $@

results/cost-omniglot-1shot.json: | $(INSTALLED)
	$(BIN)/metamirror cost --shape omniglot --shots 1 --threads 2 --json > $@.tmp
	mv $@.tmp $@

results/cost-mini-imagenet-5shot.json: | $(INSTALLED)
	$(BIN)/metamirror cost --shape mini-imagenet --shots 5 --threads 2 --methods maml,blockiaf,gradnet --json > $@.tmp
	mv $@.tmp $@

results/growth.json: benchmarks/growth.py | $(INSTALLED)
	$(BIN)/python benchmarks/growth.py --out $@

results/bf16.json: benchmarks/bf16.py | $(INSTALLED)
	$(BIN)/python benchmarks/bf16.py --out $@

results/startup.json: benchmarks/startup.py | $(INSTALLED)
	$(BIN)/python benchmarks/startup.py --out $@

speed: results/peers.json results/cost-omniglot-1shot.json results/cost-mini-imagenet-5shot.json \
		results/growth.json results/startup.json results/bf16.json
	$(BIN)/python benchmarks/pages.py --write

# What README and docs/reports.md show of a report: a kept study's, in Chromium.
docs/report.png: benchmarks/report_image.py $(wildcard src/metamirror/report/*) | $(INSTALLED)
	$(BIN)/python benchmarks/report_image.py $@

# What README says of its first listing: five seeds, minutes on one core.
results/readme_listing.json: benchmarks/readme_listing.py | $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/readme_listing.py --out $@
	$(BIN)/python benchmarks/pages.py --write

# What docs/playground.md shows: its picture, taken by the test of the page in a browser, and its figures.
docs/playground.png: $(wildcard src/metamirror/playground/page/*) | $(INSTALLED)
	METAMIRROR_BROWSER=required METAMIRROR_SCREENSHOTS=docs $(BIN)/python -m pytest -n 0 -m slow \
		tests/playground/test_browser.py -k "newcomer and desk-light"

results/playground.json: benchmarks/playground_figures.py | $(INSTALLED)
	$(BIN)/python benchmarks/playground_figures.py --out $@
	$(BIN)/python benchmarks/pages.py --write

# What docs/deploy.md says of exported models: how far they are from the estimator.
results/export.json: benchmarks/export_figures.py | $(INSTALLED)
	$(BIN)/python benchmarks/export_figures.py --out $@
	$(BIN)/python benchmarks/pages.py --write

# What docs/reliability.md shows: hours on one core. Parts that are done are kept in results/faults;
# `python tests/faults/campaign.py PART` does one again.
faults: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/campaign.py
	$(BIN)/python benchmarks/pages.py --write

# What is known against the pinned dependencies; needs a network.
audit: $(INSTALLED)
	$(BIN)/python tools/audit.py
	$(BIN)/python benchmarks/pages.py --write

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
