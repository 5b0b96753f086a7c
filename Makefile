# Every target makes what it needs first. `make` alone says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PY := $(BIN)/python
export LC_ALL ?= C.UTF-8
export PYTHONUNBUFFERED := 1
# Where the environment forbids it, no process would keep the bytecode of what it imports, and each of Airflow's processes
# and of the tests' commands would compile it again.
unexport PYTHONDONTWRITEBYTECODE

# Kills of capture, apply and driver each, in `make test-kill`; `make test` has one of each.
KILLS ?= 10
# Random tables in `make test-fuzz`, on all servers together; `make test` has 200.
FUZZ_TABLES ?= 10000
# Processes of pytest in `make test-unit`: one more than there are cores, since some tests wait.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
# Further arguments for pytest: make test-unit ARGS='-k lease -x'
ARGS ?=
# Whether `make bench` keeps its results, and makes the page of the documentation from them.
BENCH_WRITE ?=

# Spark and ZooKeeper find Java here, wherever it lies.
WITH_JAVA = JAVA_HOME="$$(scripts/java-home.sh)"

.PHONY: help install lint format test test-unit test-pythons test-airflows test-numbas test-sparks test-versions test-objects test-long test-kill test-soak test-fuzz test-nemesis test-ddl test-field test-readers test-docs types docs docs-reference bench bench-scale bench-day bench-growth bench-memory bench-peers bench-pipelines kernels demo lock test-upgrade release clean

help: ## what can be made
	@printf 'Towpath: changes of MySQL and MariaDB into Delta Lake tables.\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@printf '\nThe first one takes a few minutes: it fetches about 150 packages into .venv.\n'

install: ## .venv with everything, `cdc` in it
	@scripts/install.sh

lint: install ## ruff, mypy, import-linter
	@echo '== ruff'; $(BIN)/ruff check .; $(BIN)/ruff format --check .
	@echo '== mypy'; $(BIN)/mypy
	@echo '== import-linter'; $(BIN)/lint-imports --no-cache | grep -E 'KEPT|BROKEN|Contracts:|->'

format: install ## put the code into the project's form
	@$(BIN)/ruff check --fix-only --quiet .; $(BIN)/ruff format .

test: ## lint, the documentation, and all tests: quick, slow, DAGs, real servers, real Spark (minutes)
	@$(WITH_JAVA) scripts/test-all.sh $(ARGS)

test-unit: install ## the quick tests, which need neither servers nor Spark (a minute)
	@$(PY) -m pytest tests/unit -n $(JOBS) --dist worksteal -q $(ARGS)

test-pythons: install ## the quick tests on each Python from 3.11 to 3.14 that this machine has
	@scripts/test-pythons.sh $(ARGS)

test-airflows: install ## the tests of the DAGs on each minor version of Airflow 3 (half an hour)
	@scripts/test-airflows.sh $(ARGS)

test-numbas: install ## all kernels built with the oldest and the newest Numba, and golden files decoded with them (minutes)
	@scripts/test-numbas.sh $(ARGS)

test-sparks: install ## tests with Spark on the other tried pairs of Spark and Delta (an hour)
	@$(WITH_JAVA) scripts/test-sparks.sh $(ARGS)

test-versions: install ## the tests with servers on MySQL 5.7 and 8.0 and MariaDB 10.5 and 11.4, random first loads on these and on those of `make test`; as root, random histories too (two hours)
	@$(WITH_JAVA) scripts/test-versions.sh $(ARGS)

test-objects: install ## lake, stage and archive on a real server of objects, which is built with Go once, and its faults (an hour)
	@$(BIN)/python -m cdc.testing.servers fetch versitygw
	@TOWPATH_OBJECT_STORE=versitygw $(WITH_JAVA) $(PY) -m pytest -m '' -v --timeout 900 tests/integration/test_object_faults.py tests/integration/test_object_store.py \
		tests/integration/test_archive.py tests/unit/batches/test_stage.py tests/unit/lake/delta/test_log.py $(ARGS)

test-long: install ## the long tests that `make test` leaves out: the same on other servers, or more often (an hour)
	@scripts/need-chromium.sh
	@$(WITH_JAVA) $(PY) -m pytest tests -m long -v --timeout 1800 $(ARGS)

test-kill: install ## kill -9 of capture, apply and driver, KILLS times each (10)
	@$(WITH_JAVA) TOWPATH_KILLS=$(KILLS) $(PY) -m pytest tests/fault -v $(ARGS)

test-soak: install ## kills by the hundred, 200,000 random steps, a cut at every byte, 10 histories (TOWPATH_HISTORY_SEEDS) on each server, transactions of 1 GB (two hours)
	@TOWPATH_HISTORY_SEEDS=$${TOWPATH_HISTORY_SEEDS:-10} TOWPATH_STORE_KILLS=200 TOWPATH_MODEL_STEPS=200000 TOWPATH_STANDBY_KILLS=50 TOWPATH_EVERY_BYTE=1 TOWPATH_SOURCE_SEEDS=300 \
		TOWPATH_LARGE_MB=1000 TOWPATH_FAILOVERS=20 \
		$(WITH_JAVA) $(PY) -m pytest tests/fault/test_store_kills.py tests/fault/test_standby_kills.py tests/model \
		tests/slow/store/test_crash_bytes.py tests/unit/store/test_recover.py tests/slow/capture tests/soak \
		tests/integration/test_failover.py::test_the_lake_equals_the_new_master \
		tests/servers/capture/test_capture.py::test_memory_stays_bounded_with_a_large_transaction -v --timeout 3600 $(ARGS)

test-readers: install ## every reader of Delta on every feature of a table; READERS_WRITE=1 writes docs/reference/readers.md
	@$(WITH_JAVA) READERS_WRITE=$(READERS_WRITE) scripts/test-readers.sh $(ARGS)

test-docs: install ## every command and Python block of the tutorial, the how-to pages and the READMEs, run as printed; pages in a browser (an hour)
	@scripts/need-chromium.sh
	@$(WITH_JAVA) $(PY) -m pytest tests/slow/docs tests/unit/test_page_commands.py tests/dags/test_page_blocks.py -m '' -v --timeout 1800 $(ARGS)

test-fuzz: install ## 10,000 random tables (FUZZ_TABLES) decoded and compared, value by value (an hour)
	@TOWPATH_FUZZ_TABLES=$(FUZZ_TABLES) $(PY) -m pytest tests/servers/decode/test_fuzz.py -v -s --timeout 14400 $(ARGS)

test-nemesis: install ## 200 seeds (TOWPATH_NEMESIS_SEEDS) of faults in source, store, meta and lake (an hour)
	@TOWPATH_NEMESIS_SEEDS=$${TOWPATH_NEMESIS_SEEDS:-200} TOWPATH_SCHEMA_SEEDS=$${TOWPATH_SCHEMA_SEEDS:-60} $(WITH_JAVA) $(PY) -m pytest tests/nemesis -v --timeout 3600 $(ARGS)

test-ddl: install ## every statement of the DDL corpus through the whole loop, Delta against SELECT; writes docs/reference/ddl.md
	@$(WITH_JAVA) TOWPATH_DDL_CASES=all TOWPATH_DDL_WRITE=1 $(PY) -m pytest tests/integration/test_ddl_corpus.py -v -s $(ARGS)

test-field: install ## what users of other tools have reported, through the whole loop (docs/reference/field-reports.md; minutes)
	@$(WITH_JAVA) $(PY) -m pytest tests/field -m field -v $(ARGS)

types: install ## every type of every server through Spark into Delta, and docs/types.md from it (minutes)
	@$(WITH_JAVA) $(PY) -m tests.support.type_matrix --write docs/types.md $(ARGS)

docs: install ## the documentation's site, in site/; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

docs-reference: install ## docs/reference, examples/shop.yaml and the table in conf/ from the settings' models and the commands
	@$(PY) -m tests.support.reference

bench: install ## every figure of docs/reference/performance.md (20 minutes); BENCH_WRITE=1 makes that page anew; ARGS='--only inserts --rows 100000'
	@$(WITH_JAVA) BENCH_WRITE=$(BENCH_WRITE) $(PY) -m benchmarks $(ARGS)

bench-scale: install ## 100 destinations with 50 tables each: processors, memory, slots, latency, requests (20 minutes, 12 GB); BENCH_WRITE=1 makes the page of them
	@$(WITH_JAVA) BENCH_WRITE=$(BENCH_WRITE) $(PY) -m benchmarks.scale $(ARGS)

bench-day: install ## a day of a shop in two hours, with kills, ALTERs and maintenance: nothing grows that should not; ARGS='--page FILE'
	@$(WITH_JAVA) $(PY) -m benchmarks.day $(ARGS)

bench-growth: install ## time and memory against tables, commits, files, destinations, bytes and rows, as curves (an hour); ARGS='--only commits --page FILE'
	@$(WITH_JAVA) $(PY) -m benchmarks.growth $(ARGS)

bench-memory: install ## the memory of capture over a stream of 10 GB (10 minutes, 22 GB of disk); ARGS='--gigabytes 50'
	@$(PY) -m benchmarks.long_stream $(ARGS)

bench-peers: install ## capture against other readers of binlogs: connector-java, Debezium (mvn, javac), go-mysql (go), mysql-replication
	@$(WITH_JAVA) $(PY) -m benchmarks.peers $(ARGS)

bench-pipelines: install ## Towpath against Debezium with Kafka and Spark, JDBC copies and dlt (mvn; 30 minutes); BENCH_WRITE=1 makes the page of them; ARGS='--only jdbc'
	@$(WITH_JAVA) BENCH_WRITE=$(BENCH_WRITE) $(PY) -m benchmarks.pipelines $(ARGS)

kernels: install ## compile all kernels ahead, for each type of CPU of this kind of machine (minutes); the wheel takes them along
	@$(PY) -m cdc.kernels.build

demo: install ## the whole loop with a real database and a real Airflow (4 minutes)
	@$(WITH_JAVA) $(PY) -m examples.demo

lock: install ## new lock files from pyproject.toml
	@scripts/lock.sh

test-upgrade: install ## a deployment goes from the commit or tag FROM to this checkout, back, and over again (minutes)
	@$(WITH_JAVA) TOWPATH_UPGRADE_FROM=$(FROM) $(PY) -m pytest -m '' -v tests/slow/packaging/test_upgrade.py $(ARGS)

release: install ## dist/ of VERSION: wheel, sources, chart, site, bill of materials, checksums; tries the wheel on each Python here (minutes)
	@$(WITH_JAVA) scripts/release.sh $(VERSION)

clean: ## remove .venv, caches and what the demo left here
	@rm -rf .venv .venv-* build dist site demo spark-warehouse metastore_db derby.log .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path ./.git -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
