# One place for every command. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python

.PHONY: help ext
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

ext: ## build the extensions in place (FASTQ_EXT=records,wire for some of them)
	@flock .build.lock $(PY) setup.py -q build_ext --inplace -j 2
