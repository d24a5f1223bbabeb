# Everything a developer runs. Needs make and Python 3.11 with venv; the rest is fetched into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PACKAGES := $(wildcard logboom ports raftlog partitions dispatcher snapshots server chaos bench)
SOURCES := $(PACKAGES) $(wildcard tests scripts) pyspark_logboom.py
IN := . scripts/env.sh;
WORKERS ?= 2
CHAOS_SECONDS ?= 60
SEED ?=
MUTANT ?=
SEEDS ?= 160
FIRST_SEED ?= 1
SIM_SECONDS ?= 28800
FUZZ_SECONDS ?= 20
TARGET ?=
FROM ?= HEAD

.PHONY: help setup fmt lint type unit test retest demo bench bench-check sim sim-long mutants chaos chaos-long rolling-upgrade powerloss diskfull abuse fuzz compose-test docs java-check wheel lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.setup ## .venv with locked dependencies, logboom itself, Java if the machine has none
	@:

.venv/.setup: pyproject.toml scripts/setup scripts/java-home requirements/dev.txt requirements/data.txt requirements/java.txt
	@scripts/setup

fmt: setup ## format, and mend what ruff can mend
	@$(IN) ruff check --fix-only --quiet $(SOURCES); ruff format --quiet $(SOURCES)

lint: setup ## ruff, import rules, spelling
	@echo "lint: ruff, import-linter, codespell"
	@$(IN) ruff check --quiet $(SOURCES)
	@$(IN) ruff format --check --quiet $(SOURCES) || { ruff format --check $(SOURCES); exit 1; }
	@$(IN) out=$$(lint-imports 2>&1) || { echo "$$out"; exit 1; }
	@$(IN) codespell

type: setup ## mypy, strict
	@echo "type: mypy --strict $(PACKAGES)"
	@$(IN) mypy $(PACKAGES)

unit: .venv/.picture ## the tests alone; ARGS='-k name' to choose, WORKERS=0 for one process
	@$(IN) pytest -n $(WORKERS) --dist loadscope $(ARGS)

test: ## lint, types and tests
	@$(MAKE) -j 2 -O lint type .venv/.picture
	@$(MAKE) unit

retest: lint type ## the tests that failed in the last run, once more and alone
	@$(IN) pytest -n 0 --last-failed --last-failed-no-failures none $(ARGS)

demo: setup ## three nodes on this machine, a Spark job over 336,776 flights, a leader killed on the way
	@$(IN) env -u LOGBOOM_ENDPOINTS -u LOGBOOM_TLS_DIR logboom demo $(ARGS)

bench: .venv/.bench ## logboom beside etcd, PostgreSQL, Redis, NATS and the bare disk; then restarts; ARGS=--quick for a look
	@$(IN) status=0; python -m bench $(ARGS) || status=$$?; \
	if [ -z "$(filter-out --quick,$(ARGS))" ]; then python -m bench.restart $(or $(ARGS),--runs 1) || status=$$?; fi; \
	exit $$status

bench-check: setup ## goals and floors by the figures of the last make bench; ARGS=--goals, ARGS=file.json
	@$(IN) python -m bench.check $(ARGS)

.venv/.bench: .venv/.setup requirements/bench.txt
	@echo "bench: asyncpg, locked"
	@$(IN) python -m pip --disable-pip-version-check install -qq --no-deps --progress-bar off --require-hashes -r requirements/bench.txt
	@touch $@

.PHONY: bench-curves bench-reads bench-feeds bench-scan bench-restart bench-endless bench-spark bench-storm bench-backlog bench-passing bench-cut bench-picture

bench-curves: setup ## how cost grows: partitions, nodes, clients, sizes, log length
	@$(IN) python -m bench.curves $(ARGS)

bench-reads: setup ## what a read and a barrier cost, idle and under load
	@$(IN) python -m bench.reads $(ARGS)

bench-feeds: .venv/.bench ## what comes out of the log, and what it costs, beside NATS, Redis, PostgreSQL; ARGS=--quick for a look
	@$(IN) python -m bench.feeds $(ARGS)

bench-scan: setup ## 10 GB of 1,000 partitions in global order, in 256 MB; ARGS='--gb 1'
	@$(IN) python -m bench.scan $(ARGS)

bench-restart: setup ## from exec to serving, beside etcd; ARGS=--quick for a look
	@$(IN) python -m bench.restart $(ARGS)

bench-endless: setup ## disk and memory while twenty times of what is kept is written
	@$(IN) python -m bench.endless $(ARGS)

bench-storm: setup ## ten times what can be done, for a minute: goodput, memory, fairness; ARGS=--throttled
	@$(IN) python -m bench.storm $(ARGS)

bench-backlog: setup ## memory while ten million committed records are not applied
	@$(IN) python -m bench.backlog $(ARGS)

bench-passing: setup ## small requests beside large ones that wait for the room of both
	@$(IN) python -m bench.passing $(ARGS)

bench-cut: setup ## how long a partition of a gigabyte stands still for a snapshot
	@$(IN) python -m bench.cut $(ARGS)

bench-spark: setup ## a million rows from Spark, until durable and until applied
	@$(IN) python -m bench.spark $(ARGS)

bench-picture: .venv/.picture ## docs/performance.svg, curves.svg and endless.svg from bench/results
	@$(IN) python -m bench.picture $(ARGS)

.venv/.picture: .venv/.setup requirements/picture.txt
	@echo "picture: matplotlib, locked"
	@$(IN) python -m pip --disable-pip-version-check install -qq --no-deps --progress-bar off --require-hashes -r requirements/picture.txt
	@touch $@

mutants: setup ## deliberate bugs, each of which the simulator must find; MUTANT=name for one of them
	@$(IN) python -m chaos.sim.mutants --workers $(WORKERS) $(if $(MUTANT),--only $(MUTANT)) $(ARGS)

chaos: setup ## kill and stop real nodes under load for CHAOS_SECONDS, then check; SEED=n repeats a run
	@$(IN) logboom chaos run --seconds $(CHAOS_SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

sim: setup ## SEEDS seeds of a minute each in the simulator: whole clusters, virtual time, faults of every kind
	@$(IN) logboom chaos sim --seed $(FIRST_SEED) --seeds $(SEEDS) --workers $(WORKERS) $(ARGS)

sim-long: setup ## fresh seeds for SIM_SECONDS (8 hours); the summary goes to .chaos/sim-long.txt
	@mkdir -p .chaos; $(IN) logboom chaos sim --for $(SIM_SECONDS) --workers $(WORKERS) --summary .chaos/sim-long.txt $(ARGS)

chaos-long: setup ## an hour of the same, a new seed every five minutes
	@$(IN) for run in $$(seq 12); do logboom chaos run --seconds 300 $(ARGS); done

rolling-upgrade: setup ## FROM=commit: a live cluster of that release becomes this one, node by node, under load
	@$(IN) python -m chaos.upgrade --from $(FROM)

powerloss: setup ## power loss on all nodes right after 10,000 acknowledgements (root: loop devices)
	@$(IN) python -m chaos.powerloss $(ARGS)

diskfull: setup ## one node's disk runs full under load (root: mounts a file system)
	@$(IN) python -m chaos.diskfull $(ARGS)

abuse: setup ## garbage, huge and slow frames; 2 GB with a follower stopped
	@$(IN) python -m chaos.abuse $(ARGS)

fuzz: .venv/.fuzz ## every decoder of foreign bytes for FUZZ_SECONDS; TARGET=name for one of them
	@$(IN) python -m chaos.fuzz run $(TARGET) --seconds $(FUZZ_SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.venv/.fuzz: .venv/.setup requirements/fuzz.txt
	@echo "fuzz: atheris, locked"
	@$(IN) python -m pip --disable-pip-version-check install -qq --no-deps --progress-bar off --require-hashes -r requirements/fuzz.txt
	@touch $@

compose-test: ## the same cluster in containers: kill one, disconnect one, check, tear down
	@scripts/compose-test

docs: setup ## docs/configuration.md and docs/metrics.md, from the settings and the metrics that they list
	@$(IN) python -m logboom.config_reference > docs/configuration.md~; mv docs/configuration.md~ docs/configuration.md
	@$(IN) python -m server.metrics > docs/metrics.md~; mv docs/metrics.md~ docs/metrics.md

java-check: setup ## Spark on the Java wheel, as on a machine without Java
	@scripts/java-check

wheel: setup ## dist/logboom-*.whl
	@rm -rf dist; $(IN) python -m hatchling build -t wheel

lock: ## choose versions anew: requirements/*.txt
	@scripts/lock

clean: ## what can be made again; .venv stays
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse artifacts
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
