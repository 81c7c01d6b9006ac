# The front doors. `make` alone lists them.
PYTHON ?= python3
PROFILE ?= laptop
GROUP ?= headline
CORES ?=
JOBS ?= 2

BIN := .venv/bin
READY := .venv/.installed
FRONT := $(BIN)/python -m lib.runs

.PHONY: help study full test lint figures report lab bench status clean-runs

help:
	@echo "make study       train and evaluate the headline runs on this machine (PROFILE=laptop GROUP=headline)"
	@echo "make full        every run of the laptop grid; the plan and its time come first"
	@echo "make test        all tests"
	@echo "make figures     all figures and tables from the committed reference results, without training"
	@echo "make report      all analyses as one static site, figures/site/index.html"
	@echo "make status      which runs are finished, and what made them"
	@echo "make lab         JupyterLab on the notebooks"
	@echo "make bench       how fast solver, rewards, generation and training are here"
	@echo "make lint        ruff, and that notebooks are committed without outputs"
	@echo "make clean-runs  delete all local runs"

# exec, here and below: a process killed takes those it started with it, and none goes on unseen
study: $(READY)
	@exec $(FRONT) make $(PROFILE) $(GROUP) --with-parent $(if $(CORES),--cores $(CORES))

full:
	@$(MAKE) --no-print-directory study GROUP=full

test: $(READY)
	@exec $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/nbstripout --verify notebooks/*.ipynb

figures: $(READY)
	@exec $(FRONT) figures $(PROFILE)

report: figures
	@exec $(FRONT) report $(PROFILE)

status: $(READY)
	@exec $(FRONT) status $(PROFILE)

lab: $(READY)
	@exec $(BIN)/jupyter lab notebooks

bench: $(READY)
	@exec $(BIN)/python -m tests.bench

clean-runs:
	rm -rf "$${COUNTDOWN_RUNS:-data/runs}"

# The stamp is written last: an installation that was cut off is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(READY)
