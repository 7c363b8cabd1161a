# The project's only list of commands: `make` or `make help` shows it.
#
# What is typed as key=value after a target goes on to Hydra as it stands, quoted for the shell:
#     make train experiment=feddp_pald seed=43 stages.release.epsilon=1 'data.classes=[a, b]'
# except the names in `_own` and `_environment` below. Put quotes around values the shell would touch (spaces,
# brackets, $). Limits, which are make's: no line breaks in a value, one value per key (the last one wins), and a
# bare ~key is not an assignment, so deletions go into overrides="~key", which is handed to the shell untouched.
# VENV must not contain spaces.

VENV ?= .venv
gpus :=
processes := 2
# Test files run side by side.
workers := 2
overrides :=
args :=
yes :=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Idle OpenMP threads must sleep, not spin: on a busy machine spinning is several times slower.
export OMP_WAIT_POLICY ?= PASSIVE
# glibc would give each large tensor fresh pages and take them back at once: a fifth of the time of an image denoiser.
export MALLOC_MMAP_THRESHOLD_ ?= 1000000000
export MALLOC_TRIM_THRESHOLD_ ?= 1000000000

# ---- the command line, made ready for Hydra ---------------------------------------------------------------------

_own := VENV PYTHON RUN_ID gpus processes workers overrides args yes
_environment := DATA_DIR LOG_DIR WANDB_% OMP_% MALLOC_% MKL_% CUDA_% NCCL_% TORCH_% HYDRA_% PYTHON% CI SHELL MAKE%

# Names of our own begin with an underscore: a typed `hydra=...` would replace a variable `hydra` of this file.
# MAKEOVERRIDES is in reverse order, with values already escaped by make: only the names are taken from it.
_empty :=
_space := $(_empty) $(_empty)
_reverse = $(if $1,$(call _reverse,$(wordlist 2,$(words $1),$1)) $(firstword $1))
_name_of = $(patsubst %:,%,$(firstword $(subst =, ,$1)))
_is_typed = $(filter command,$(firstword $(origin $1)))
_names := $(foreach _w,$(call _reverse,$(MAKEOVERRIDES)),$(if $(findstring =,$(_w)),$(call _name_of,$(_w))))
_names := $(foreach _n,$(_names),$(if $(call _is_typed,$(_n)),$(_n)))
_names := $(filter-out $(_own) $(_environment),$(_names))
unexport $(_names)

_special := ' " ` \ ( ) [ ] { } * ? < > | & ; ! ~ ^ \# $$
_is_special = $(or $(findstring $(_space),$1),$(findstring $(_empty)	$(_empty),$1),$(strip $(foreach _c,$(_special),$(findstring $(_c),$1))))
_quoted = $(if $(call _is_special,$1),'$(subst ','\'',$1)',$1)
_seen :=
_once = $(if $(filter $1,$(_seen)),,$(eval _seen += $1)$1)
_names := $(foreach _n,$(_names),$(call _once,$(_n)))
_typed := $(foreach _n,$(_names),$(call _quoted,$(_n)=$(value $(_n))))
_hydra = $(strip $(_typed) $(value overrides))

# ---- how the app is started -------------------------------------------------------------------------------------

_trainer_typed := $(if $(filter trainer,$(_names)),$(value trainer))$(patsubst trainer=%,%,$(filter trainer=%,$(value overrides)))
_trainer_for = $(if $(filter-out 0 1,$1),trainer=ddp,$(if $(filter 1,$1),trainer=gpu,$(if $(filter 0,$1),trainer=cpu)))
_default_trainer := $(if $(_trainer_typed),,$(call _trainer_for,$(gpus)))
_ranks := $(if $(filter ddp_sim,$(_trainer_typed)),$(processes),$(filter-out 0 1,$(gpus)))

# One identifier for all ranks: each rank would otherwise name the run after its own clock.
_new_run_id = $(shell date -u +%Y%m%d-%H%M%S)-$(shell od -An -N2 -tx1 /dev/urandom | tr -d ' \n')
_run_id = $(or $(value RUN_ID),$(_new_run_id))
_torchrun = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/torchrun --standalone --nproc_per_node=$(_ranks) -m
_app = RUN_ID=$(_run_id) $(if $(_ranks),$(_torchrun),$(BIN)/python -m) fedsynth.train

# ---- targets ----------------------------------------------------------------------------------------------------

.DEFAULT_GOAL := help
.PHONY: help train sweep plan report reproduce compare test test-fast lint types format check lock clean clean-logs

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@printf '%s\n' '' 'key=value goes on to Hydra, the rest is for make:' \
	  '  gpus=N             0: trainer=cpu, 1: trainer=gpu, more: torchrun and trainer=ddp, unless trainer= is given' \
	  '  processes=N        ranks on the CPU with trainer=ddp_sim (default 2)' \
	  '  overrides="~key"   Hydra overrides and options that are not key=value, e.g. overrides="--cfg job"' \
	  '  args="-k name"     options for pytest' \
	  '  RUN_ID=name        name of the run, the same again to continue it (default: time and a random part)' \
	  '  VENV=dir           virtual environment (default .venv);  PYTHON=python3.12 makes it with that interpreter' '' \
	  'make train experiment=feddp_pald seed=43 stages.release.epsilon=1' \
	  'make sweep experiment=feddp_pald seed=42,43,44'

train: $(STAMP) ## Run an experiment: make train experiment=feddp_pald seed=43 gpus=4
	$(_app) $(strip $(_default_trainer) $(_hydra))

sweep: $(STAMP) ## Run every combination of comma-separated values: make sweep experiment=feddp_pald seed=42,43,44
	$(_app) --multirun $(strip $(_default_trainer) $(_hydra))
	@printf '%s\n' '' 'All runs in one table: make report$(if $(filter experiment,$(_names)), experiment=$(experiment))'

# paper= names the experiment here and is not passed on: in Hydra it is the group of published values.
_paper := $(if $(filter paper,$(_names)),$(paper))
_beside_paper = $(strip $(filter-out paper=%,$(_typed)) $(value overrides))
_seeds := $(if $(filter seed,$(_names)),,hparams_search=seeds)

reproduce: $(STAMP) ## All tables of a paper over its seeds, and one report: make reproduce paper=feddp_pald
	@$(BIN)/python -m fedsynth.reproduce $(filter paper=% experiment=%,$(_typed))
	$(_app) --multirun $(strip $(_default_trainer) experiment=$(_paper)/paper $(_seeds) $(_beside_paper))
	$(BIN)/python -m fedsynth.report experiment=$(_paper)/paper

plan: $(STAMP) ## Show what train would compute and what is stored already, without running it
	$(BIN)/python -m fedsynth.train plan=true $(strip $(_default_trainer) $(_hydra))

report: $(STAMP) ## Write the report of the newest run, or: make report experiment=feddp_pald | last=3 | runs=a,b
	$(BIN)/python -m fedsynth.report $(_hydra)

compare: $(STAMP) ## Compare runs on one page: make compare experiment=a,b | runs="x,y" | last=6 [logger=wandb]
	$(BIN)/python -m fedsynth.compare $(_hydra)

test: $(STAMP) ## Run all tests (real data: DATA_DIR=...); args="-k name" narrows them; workers=0: in one process
	$(BIN)/python -m pytest -n $(workers) --dist loadfile $(value args)

test-fast: $(STAMP) ## Run the tests that take seconds
	$(BIN)/python -m pytest -m "not slow and not ddp" -n $(workers) --dist loadfile $(value args)

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	$(BIN)/mypy

format: $(STAMP) ## Reformat the code and mend what can be mended automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint types test ## Everything a change must pass: lint, types, test

lock: ## Pin all dependencies again after a change in pyproject.toml (needs uv); args=--upgrade moves them
	@command -v uv >/dev/null || { echo 'make lock needs uv (pip install uv); nothing else does.' >&2; exit 1; }
	uv pip compile --universal --python-version 3.11 --extra dev pyproject.toml -c constraints.txt \
	  --quiet --no-header --no-annotate --output-file requirements.lock $(value args)

clean: ## Remove caches and build files; keeps the virtual environment, logs and data
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/fedsynth.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

clean-logs: ## Remove everything below logs/: runs, stored artifacts, reports; asks first, yes=1 does not
	@du -sh logs; \
	if [ "$(yes)" != 1 ]; then \
	  printf 'Remove all of it? [y/N] '; read -r answer || answer=; \
	  case "$$answer" in y|Y|yes) ;; *) echo 'Kept. (Without a terminal: make clean-logs yes=1)'; exit 1 ;; esac; \
	fi; \
	find logs -mindepth 1 ! -name .gitkeep -delete

# ---- the virtual environment ------------------------------------------------------------------------------------

# Redone when the lock file or the metadata changes. While an installation is under way `.installing` is there; it
# becomes the stamp at the end, so that a later edit is newer. Found on arrival, it marks an interrupted one.
define _install
set -eu
fail() { printf '%s\n' "$$@" >&2; exit 1; }
usable() {  # Run it: a pyenv shim may exist without a Python behind it.
  "$$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1
}
current() { [ -e "$$STAMP" ] && [ ! requirements.lock -nt "$$STAMP" ] && [ ! pyproject.toml -nt "$$STAMP" ]; }

mkdir -p .cache
if command -v flock >/dev/null 2>&1; then
  exec 9>.cache/install.lock
  flock -n 9 || { echo 'Waiting for another make to finish its installation.'; flock 9; }
else
  until mkdir .cache/install.lock.d 2>/dev/null; do
    echo 'Waiting for another make to finish its installation (if none runs: rmdir .cache/install.lock.d).'
    sleep 5
  done
  trap 'rmdir .cache/install.lock.d' EXIT
  trap 'exit 130' INT TERM
fi
if current; then exit 0; fi

quiet=--quiet
rm -f "$$STAMP"
if [ ! -d "$$VENV/conda-meta" ] && { [ -e "$$VENV/.installing" ] || ! usable "$$VENV/bin/python"; }; then
  python=
  for candidate in $${PYTHON:-python3.11 python3.12 python3}; do
    if usable "$$candidate"; then python=$$candidate; break; fi
  done
  [ -n "$$python" ] || fail \
    "No working Python 3.11 or 3.12 with venv, tried: $${PYTHON:-python3.11, python3.12, python3}." \
    'Install one (Debian, Ubuntu: apt install python3.11 python3.11-venv), or name it: make PYTHON=/path/to/python3.11 ...'
  if [ -d "$$VENV" ] && [ -n "$$(ls -A "$$VENV")" ] && [ ! -e "$$VENV/.installing" ] && [ ! -e "$$VENV/pyvenv.cfg" ]; then
    fail "VENV=$$VENV is a folder with something else in it; name another one: make VENV=.venv ..."
  fi
  echo "Making $$VENV with $$python ($$("$$python" --version))."
  mkdir -p "$$VENV"
  : > "$$VENV/.installing"
  "$$python" -m venv --clear "$$VENV"
  if [ -t 1 ]; then quiet=; fi  # Progress bars for the long one only.
fi
: > "$$VENV/.installing"
echo "Installing requirements.lock into $$VENV: about 6 GB with the CUDA libraries; minutes, seconds if it is an update."
pip() { "$$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$$@"; }
pip --version >/dev/null 2>&1 || "$$VENV/bin/python" -m ensurepip --default-pip >/dev/null
pip install $$quiet -r requirements.lock
pip install $$quiet --no-deps -e .
mv "$$VENV/.installing" "$$STAMP"
endef

$(STAMP): export INSTALL = $(_install)
$(STAMP): export STAMP := $(STAMP)
$(STAMP): export VENV := $(VENV)
$(STAMP): export PYTHON := $(PYTHON)
$(STAMP): requirements.lock pyproject.toml
	@sh -c "$$INSTALL" install
