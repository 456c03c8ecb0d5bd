# Everything runs in .venv, which each target makes for itself; nothing is installed outside of this folder.
SHELL := /bin/bash
BIN := .venv/bin
# Tests wait as much as they compute: one process more than two cores keeps both busy.
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 3 ? n + 1 : 4)))

.PHONY: demo test check bench docs fuzz soak clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    write an environment, serve it, call it: the main job, start to end"
	@echo "make test    set up everything and run the tests (LONG=1: also those that take minutes each)"
	@echo "make check   lint, types, layers"
	@echo "make bench   measure calls beside other frameworks (minutes; installs them under .bench/)"
	@echo "make docs    build the documentation as a site (site/) and run every snippet of it"
	@echo "make fuzz    hostile input for our servers, clients and readers, for ten minutes (FUZZ_SECONDS=, SEED=)"
	@echo "make soak    10,000 creates while processes of every kind are killed (SOAK_CREATES=, SEED=), then 50 rounds of rollouts"
	@echo "make clean   remove what the targets above made"

demo: .venv/.ready-base
	@$(BIN)/python scripts/demo.py

test: .venv/.ready-dev
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(LONG),,-m "not long") $(TESTS)

check: .venv/.ready-dev
	@scripts/check

bench: .venv/.ready-dev
	@$(BIN)/python benchmarks/calls/run.py

docs: .venv/.ready-dev
	@$(BIN)/python -m aenv.project.manifest > docs/reference/config.schema.json
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@$(BIN)/python -m pytest -q tests/docs
	@echo "the site is in site/: python3 -m http.server --directory site"

fuzz: .venv/.ready-dev
	@$(BIN)/python -m tests.fuzzing --seconds $(or $(FUZZ_SECONDS),600) --seed $(or $(SEED),1)

soak: .venv/.ready-dev
	@$(BIN)/python -m tests.soak --creates $(or $(SOAK_CREATES),10000) --seed $(or $(SEED),1)
	@AENV_ROLLOUT_KILL_ROUNDS=50 $(BIN)/python -m pytest -q -s tests/rollout/test_kill_and_resume.py tests/trajectory/test_crash.py

.venv/.ready-%: pyproject.toml scripts/setup scripts/constraints.txt
	@scripts/setup $*

clean:
	rm -rf .venv .bench site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
