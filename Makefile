# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := build/tools
INTEGRATIONS := build/integrations
INSTALL := -m pip --disable-pip-version-check --quiet install
# Only files with these hashes, and no code of a package runs to build it.
INSTALL_LOCKED := $(INSTALL) --require-hashes --only-binary :all: --requirement
DEVICE ?= cpu
MINUTES ?= 60
BATCH ?= 200
RECORDS := benchmarks/records
BENCHES := bench-output bench-gram bench-model bench-scaling bench-eval bench-data

.PHONY: demo test lint types format bench $(BENCHES) long-run campaign coverage mutation docs docs-site integrations \
	lock audit clean

demo: $(VENV)/.demo-ready  ## train a language model on real text for a few minutes, and see what it has learnt
	$(BIN)/zloss demo

test: lint types  ## everything that must hold before a change lands
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal  # a core for each

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCHES)  ## measure everything on this machine, with nothing else to do; on a GPU: DEVICE=cuda BATCH=200,1000

bench-output: OPTIONS := --batch $(BATCH)
bench-gram: OPTIONS := --heads dense-z,gram-z --batch 200,1000,4000 --classes 100000
$(BENCHES): bench-%: $(READY)
	$(BIN)/zloss bench $(patsubst gram,output,$*) --device $(DEVICE) $(OPTIONS) --output $(RECORDS)/$*.$(DEVICE).jsonl

long-run: $(READY)  ## 20,000 steps in float32 against dense float64 SGD, and rewrite the record
	$(BIN)/python -m benchmarks.long_run

campaign: $(READY)  ## attack the library and the commands at random for MINUTES, and renew the record
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaign.campaign --minutes $(MINUTES) --output $(RECORDS)/campaign.$(DEVICE).jsonl

coverage: $(READY)  ## measure the lines and branches that the tests run, and rewrite the record
	rm -rf build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
	$(BIN)/python -m benchmarks.coverage_table

mutation: $(READY)  ## put small errors into the step, one at a time, see which the tests notice, and rewrite the record
	$(BIN)/python -m tests.mutation.run --record $(MUTATION)

docs: $(READY)  ## rebuild the tables and the picture of README.md and docs/ from the records
	$(BIN)/python -m benchmarks.tables

docs-site: $(READY)  ## build the documentation in build/site; a warning, a broken link or an undocumented name fails
	rm -rf build/site build/doctrees  # pages that are gone would stay
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site
	@echo "open build/site/index.html"

integrations: $(INTEGRATIONS)/.ready  ## train under the real Lightning, transformers and Accelerate, on the CPU
	OMP_NUM_THREADS=1 $(INTEGRATIONS)/bin/python -m pytest tests/integrations

lock: $(TOOLS)/.ready  ## write the lock files anew from the requirements of the packages; for newer versions UPGRADE=--upgrade
	$(TOOLS)/bin/python -m tests.supply_chain.lock $(UPGRADE)

audit: $(TOOLS)/.ready  ## ask osv.dev for known vulnerabilities of all that is installed here; needs the network
	$(TOOLS)/bin/python -m tests.supply_chain.audit $(AUDIT)

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.demo-ready: $(READY) demo-requirements.txt
	$(BIN)/python $(INSTALL_LOCKED) demo-requirements.txt --no-deps
	touch $@

$(READY): pyproject.toml lab/pyproject.toml constraints.txt locked-requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and "make needs Python 3.11.5 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL_LOCKED) locked-requirements.txt
	$(BIN)/python $(INSTALL) --only-binary :all: --constraint constraints.txt torch  # its builds differ by machine
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable . --editable lab
	$(BIN)/python -m pip check
	touch $@

$(TOOLS)/.ready: tool-requirements.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python $(INSTALL_LOCKED) tool-requirements.txt
	touch $@

$(INTEGRATIONS)/.ready: integration-requirements.txt constraints.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python $(INSTALL_LOCKED) integration-requirements.txt --no-deps
	$(INTEGRATIONS)/bin/python $(INSTALL) --only-binary :all: --constraint constraints.txt torch  # as above
	touch $@
