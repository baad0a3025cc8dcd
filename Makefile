# One place for every command. `make help` lists them.
#
# Rules: every target sets up what it needs; the virtual environment is .venv; nothing outside this folder is changed,
# but for Debian packages that a test needs and root may install (kcat, zsh, fish, Chromium; Java and Maven for interop-kafka).
PYTHON  ?= python3
VENV    ?= .venv
PY      := $(VENV)/bin/python
INPUT   ?= examples/data
RECORDS ?= 2000000
# Where it is set, each of the hundreds of processes that tests start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
PYTEST  := $(PY) -m pytest
NODES_TESTS ?= tests/interop tests/integration
NODES_SHARE ?= tests/interop/test_client.py tests/interop/test_transactions_client.py tests/interop/test_groups_848.py tests/interop/test_transaction_codes.py tests/interop/test_group_codes.py tests/integration/test_produce_fetch.py

NATIVE  := $(wildcard src/fastq/_native/*.pyx src/fastq/_native/*.pxd src/fastq/_native/*.h)

.DEFAULT_GOAL := help
.PHONY: help demo pipeline pipeline-flights test test-nodes unit steady soak simulate sanitize interop-kafka interop-spark interop-cluster bench bench-micro bench-compare bench-growth bench-cluster bench-instructions bench-scaling lint format generate reference docs wheel wheels binary ext clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@echo "making $(VENV), and installing into it what fastq needs"
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: on Debian and Ubuntu, apt-get install python3-venv python3-dev gcc"; exit 1; }
	@$(PY) -c 'import os, sys, sysconfig; p = sysconfig.get_path("include"); sys.exit(not os.path.exists(os.path.join(p, "Python.h")))' \
	  || { echo "Python.h is missing: on Debian and Ubuntu, apt-get install python3-dev gcc"; exit 1; }
	@$(PY) -m pip install -q -U pip
	@touch $@

# The package itself, editable, with its run-time dependencies; the extensions are built in place. The paths: setuptools' own finder comes
# after all folders, and a program beside a clone that is called fastq would be given that folder for the package.
$(VENV)/.installed: $(VENV)/.created pyproject.toml setup.py
	@$(PY) -m pip install -q "setuptools>=77" "cython>=3.1"
	@PYTHONWARNINGS="ignore:Editable installation" FASTQ_EXT=- $(PY) -m pip install -q --no-build-isolation -e .
	@$(PY) -c 'import os, sysconfig; open(sysconfig.get_path("purelib") + "/fastq-sources.pth", "w").write(os.path.abspath("src") + "\n" + os.path.abspath("broker") + "\n")'
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(NATIVE)
	@$(MAKE) -s ext
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	@$(PY) -m pip install -q --group test
	@touch $@

$(VENV)/.pipeline: $(VENV)/.installed
	@echo "installing Spark and what the pipeline needs beside it (half a gigabyte the first time)"
	@$(PY) -m pip install -q --group pipeline
	@touch $@

# What the tests' Java machines start with: they take half the time.
$(VENV)/.spark-classes: $(VENV)/.built $(VENV)/.test tools/spark_classes.py
	@if $(PY) tools/spark_classes.py; then touch $@; else echo "Spark's tests start without it, and take longer"; fi

# The site needs nothing of the package: the pages of the reference are written beforehand, by `make reference`.
$(VENV)/.docs: $(VENV)/.created pyproject.toml
	@$(PY) -m pip install -q --group docs
	@touch $@

$(VENV)/.binary: $(VENV)/.installed
	@PYTHONWARNINGS="ignore:Editable installation" FASTQ_EXT=- $(PY) -m pip install -q --no-build-isolation -e ".[console,schemas]" --group binary
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	@$(PY) -m pip install -q --group lint --group test
	@touch $@

ext: ## build the extensions in place (FASTQ_EXT=records,wire for some of them)
	@echo "building fastq's extensions (a minute the first time)"
	@flock .build.lock $(PY) setup.py -q build_ext --inplace

demo: $(VENV)/.built ## real log lines into an embedded broker and out again, all accounted for (INPUT=/var/log)
	@$(PY) examples/demo.py --input "$(INPUT)" --records $(RECORDS)

pipeline: $(VENV)/.built $(VENV)/.pipeline ## log lines through three Spark jobs that agree in the end, with a report (INPUT=/var/log)
	@PYTHONPATH=examples $(PY) -m pipeline --input "$(INPUT)"

pipeline-flights: $(VENV)/.built $(VENV)/.pipeline ## the same on the 336,776 flights of New York in 2013, whose totals are published
	@PYTHONPATH=examples $(PY) -m pipeline --workload flights

# What is no unit test mostly waits, for processes that start, for time-outs and disks: two more than there are cores. Unit tests do so now
# and then, Spark computes.
WAITING_WORKERS ?= 4
BY_FILE := --dist loadfile --no-loadscope-reorder
test: $(VENV)/.built $(VENV)/.test $(VENV)/.spark-classes kcat shells chromium ## all tests, those with the peers' clients among them
	@$(PYTEST) tests/unit -n 3 --dist loadfile -m "not soak"; units=$$?; \
	  $(PYTEST) tests --ignore tests/unit --ignore tests/spark --ignore tests/spark_jvm -n $(WAITING_WORKERS) $(BY_FILE) --durations 25 \
	    -m "not kafka and not spark and not soak"; others=$$?; \
	  $(PYTEST) tests/spark tests/integration/test_readme.py -n 2 $(BY_FILE) --durations 10 -m "spark and not soak"; sparks=$$?; \
	  [ -z "$(NODES_SHARE)" ] || $(MAKE) -s test-nodes NODES_TESTS="$(NODES_SHARE)" && exit $$((units + others + sparks))

test-nodes: $(VENV)/.built $(VENV)/.test ## the tests whose broker may be three nodes, with three; make test takes a share of them
	@FASTQ_NODES=3 $(PYTEST) $(NODES_TESTS) -n 2 --dist loadfile -m "not kafka and not spark and not spark_jvm and not soak"

PAPERS ?=
.PHONY: kcat shells chromium java nodes-share rabbitmq bench-papers
nodes-share:
	@echo $(NODES_SHARE)

kcat:
	@command -v kcat >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq kcat >/dev/null; }; } \
	  || echo "kcat is not here and cannot be installed: its tests say so and are left out"

shells:
	@{ command -v zsh && command -v fish; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq zsh fish >/dev/null; }; } \
	  || echo "zsh and fish are not here and cannot be installed: the tests of their completion say so and are left out"

chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; }; } \
	  || echo "Chromium is not here and cannot be installed: the tests of the console in a browser say so and fail"

java:
	@{ command -v mvn && command -v java; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless maven >/dev/null; }; } \
	  || echo "Java and Maven are not here and cannot be installed: the tests against Apache Kafka say so and are left out"

unit: $(VENV)/.built $(VENV)/.test ## the tests that run in seconds
	@$(PYTEST) tests/unit -m "not slow and not soak"

RUNS ?= 10
steady: ## make test, RUNS times, each written down in benchmarks/results/steady.txt: who fails in one of them is broken
	@$(PYTHON) tools/steady.py $(RUNS)

SOAK ?= tests
soak: $(VENV)/.built $(VENV)/.test java kcat shells chromium ## the long tests at their full numbers, two hours; results go to benchmarks/results/ (SOAK=tests/simulation: a part of them)
	@FASTQ_SOAK=1 bash -o pipefail -c '$(PYTEST) $(SOAK) -n 3 $(BY_FILE) -m "soak or slow" -vv --durations=0 --timeout 3600 -o faulthandler_timeout=4000 --disable-warnings | tee benchmarks/results/soak.txt'; long=$$?; \
	  [ "$(SOAK)" = tests ] || exit $$long; \
	  $(MAKE) -s test-nodes; nodes=$$?; \
	  FASTQ_SOAK=1 $(PY) tools/sanitize.py && exit $$((long + nodes))

SANITIZE ?=
sanitize: $(VENV)/.built $(VENV)/.test ## the native tests under sanitizers (SANITIZE="address thread collect memory", or some of them)
	@$(PY) tools/sanitize.py $(SANITIZE)

SEEDS ?= 200
SEED ?= 0
simulate: $(VENV)/.built $(VENV)/.test ## whole clusters in one process, on virtual time, all kinds of trouble (SEEDS=200 of them, from SEED=0 on)
	@cd tests && ../$(PY) -m simulation --seeds $(SEEDS) --seed $(SEED) --keep ../build/simulation \
	  $(if $(RESULTS),--results $(abspath $(RESULTS)))

interop-kafka: $(VENV)/.built $(VENV)/.test java kcat chromium ## Apache Kafka (through Maven): its broker for our client, its tools for our broker
	@$(PYTEST) tests/interop -n 2 --dist loadfile -m "kafka and not soak" --timeout 600 -o faulthandler_timeout=700

INTEROP_CLUSTER ?= kafka_brokers brokers_under_kafka kafka_controller kafka_quorum kafka_follower mixed_transactions rolling_replacement
interop-cluster: $(VENV)/.built $(VENV)/.test java ## the share of interop-kafka in which nodes of both are one cluster: quorums, controllers, leaders, followers, rolling replacement
	@$(PYTEST) $(INTEROP_CLUSTER:%=tests/interop/test_%.py) -n 2 --dist loadfile -m "kafka and not soak" --timeout 600 -o faulthandler_timeout=700

interop-spark: $(VENV)/.built $(VENV)/.test java ## Spark's own Kafka connector (through Maven) on our broker, and beside ours
	@$(PY) tools/spark_jvm.py
	@$(PYTEST) tests/spark_jvm -m spark_jvm

bench: bench-micro bench-compare ## the figures, into benchmarks/results/ (a quiet machine, two hours); beside them bench-growth, bench-cluster, bench-instructions

bench-micro: $(VENV)/.built $(VENV)/.test
	@$(PYTEST) benchmarks/micro --benchmark-only --benchmark-json=benchmarks/results/micro.json

COMPARED ?= clients broker latency partitions memory cleaner coordination cluster rolling simulation mirror mirror_failover console observability spark fresh
bench-compare: $(VENV)/.built $(VENV)/.test java
	@cd benchmarks/compare && failed=; for run in $(COMPARED); do ../../$(PY) $$run.py || failed="$$failed $$run"; done; \
	  ../../$(PY) report.py; [ -z "$$failed" ] || { echo "these failed:$$failed"; exit 1; }

bench-growth: $(VENV)/.built $(VENV)/.test ## how costs grow with bytes (60 GB of disk), partitions, connections and groups, with a plot
	@$(PY) benchmarks/compare/growth.py && $(PY) benchmarks/compare/report.py

bench-cluster: $(VENV)/.built $(VENV)/.test java ## 10,000 partitions and 20 GiB of catch-up on three nodes (60 GB of disk)
	@cd benchmarks/compare && ../../$(PY) cluster_many.py && ../../$(PY) report.py

BASE ?=
bench-instructions: $(VENV)/.built $(VENV)/.test ## instructions of the hot paths, by valgrind, beside those of an older checkout (BASE=/path/to/it, its extensions built in place)
	@$(PY) benchmarks/compare/instructions.py $(if $(BASE),--base $(BASE)) && $(PY) benchmarks/compare/report.py

bench-scaling: $(VENV)/.built $(VENV)/.test ## what a controller holds and does with up to a million partitions, for docs/scaling.md
	@$(PY) benchmarks/compare/scaling.py

bench-papers: $(VENV)/.built $(VENV)/.test java rabbitmq ## what the classic texts about Kafka measured, beside other brokers, with plots (60 GB of disk; PAPERS="--only kafka-2011")
	@$(PY) benchmarks/papers/run.py $(PAPERS)

rabbitmq: # not installed from here: Debian's package starts a service
	@command -v rabbitmq-server >/dev/null \
	  || echo "rabbitmq-server is not here, and the page leaves it out: install it, and stop its service, for figures beside RabbitMQ"

lint: $(VENV)/.built $(VENV)/.lint ## ruff, mypy, stubtest, generated code in step
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@MYPYPATH=src:broker $(PY) -m mypy.stubtest --ignore-disjoint-bases $$(ls src/fastq/_native/*.pyx | sed 's|src/fastq/_native/\(.*\)\.pyx|fastq._native.\1|') --allowlist tools/stubtest-allowlist.txt
	@$(PY) tools/generate_messages.py --check
	@$(PY) tools/generate_async_admin.py --check
	@$(PY) tools/generate_reference.py --check

format: $(VENV)/.lint ## put the code in the house's form
	@$(PY) -m ruff check --fix -q .
	@$(PY) -m ruff format -q .

generate: $(VENV)/.built $(VENV)/.lint ## write the protocol's messages anew from tools/messages, and the asyncio admin client from the blocking one
	@$(PY) tools/generate_messages.py
	@$(PY) tools/generate_async_admin.py

reference: $(VENV)/.built $(VENV)/.test ## write docs/reference/ anew from the sources
	@$(PY) tools/generate_reference.py

.PHONY: tools-page
tools-page: $(VENV)/.built $(VENV)/.test java ## docs/tools.md anew: what Apache Kafka's tools and ours print
	@FASTQ_TOOLS_PAGE=1 $(PYTEST) tests/interop/test_tools_page.py

console-pictures: $(VENV)/.built $(VENV)/.test chromium ## pictures of the console for the documentation; FOLDER=/tmp/x for all pages, to look at
	@$(PY) tools/console_pictures.py $(FOLDER)

# Without -q, which has --strict see no warning.
docs: $(VENV)/.docs ## the site of the documentation, in build/site: open build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict && echo "open build/site/index.html"

wheel: $(VENV)/.lint ## sdist and wheel in dist/
	@rm -rf dist && $(PY) -m build -q

# Built: wheels for other machines are tried with the broker of these sources.
$(VENV)/.wheels: $(VENV)/.built
	@$(PY) -m pip install -q --group wheels
	@touch $@

WHEELS ?=
JOBS ?= 2
wheels: $(VENV)/.wheels ## wheels for Linux (glibc, musl), macOS and Windows in dist/, checked (WHEELS="cp312-musllinux_x86_64 ..." some of them)
	@$(PY) tools/wheels.py --jobs $(JOBS) $(WHEELS)

binary: $(VENV)/.built $(VENV)/.binary ## one file that runs without Python and without a C library: dist/fastq-broker, and its link dist/fastq
	@$(PY) tools/binary/build.py

clean: ## remove what was built
	@rm -rf build dist src/*.egg-info src/fastq/_native/*.so src/fastq/_native/*.c $(VENV)/.built demo-data pipeline-data
