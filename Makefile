# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEVICE ?= cpu
BATCH ?= 200
RECORDS := benchmarks/records
BENCHES := bench-output bench-gram bench-model bench-scaling bench-eval bench-data

.PHONY: demo test lint types format bench $(BENCHES) long-run docs docs-site clean

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

docs: $(READY)  ## rebuild the tables and the picture of README.md and docs/ from the records
	$(BIN)/python -m benchmarks.tables

docs-site: $(READY)  ## build the documentation in build/site; a warning, a broken link or an undocumented name fails
	rm -rf build/site build/doctrees  # pages that are gone would stay
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site
	@echo "open build/site/index.html"

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.demo-ready: $(READY) demo-requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --require-hashes -r demo-requirements.txt
	touch $@

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "zloss needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev,docs]' --editable lab
	touch $@
