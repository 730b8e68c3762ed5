# Topiclake: `make` prints this help.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
N ?= 5000000
# Of `make torture`: records, kills at random moments, kills of each further kind, seconds for each way to write.
RECORDS ?= 200000
KILLS ?= 25
KIND_KILLS ?= 8
WRITE_SECONDS ?= 600
# Two workers, each with a separate broker, registry and Spark; the tests of a file stay on one worker. A worker
# that dies fails the run: xdist would start its file again, and wait for ever once that has died, too.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=20 --durations-min=5
# Marks of pyproject.toml: what `make test` runs, and what `make test-all` runs after that. One run of both would
# keep its JVMs for over an hour, in which they become slower.
QUICK := -m "not thorough and not root"
OTHER := -m "thorough or root"
TIMES := .cache/test-times
export PYTHONUNBUFFERED := 1
# Empty is unset. Each of some hundred processes would compile this project's modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help setup lock jars stores chromium databases prometheus wheel demo test test-all test-times test-unit check format typecheck bench bench-batches bench-scale bench-race bench-latency soak torture torture-short torture-cdc faults reference docs screenshots services-up services-down clean

help:  ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready jars jars/target/.archived  ## create .venv with the pinned packages, and fetch the jars

# --no-deps: the lock is complete, and with hashes pip does not match a pinned package to one with extras.
$(VENV)/.ready: requirements.txt requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"Python {sys.version.split()[0]} is too old: Topiclake needs 3.10 or newer; try: make setup PYTHON=python3.12")'
	@echo "== Python packages into $(VENV) (Spark alone is 430 MB; the first time takes a minute or two)"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --progress-bar off -q --no-deps --require-hashes -r requirements-dev.txt
	$(PY) -m pip install --disable-pip-version-check -q --no-deps -e .
	@touch $@

# Pinned versions stay if the ranges allow them. UPGRADE="--upgrade-package ruff" selects newer ones.
LOCK := $(VENV)/bin/uv pip compile pyproject.toml --quiet --extra workbench --universal --python-version 3.10 \
	--no-python-downloads --generate-hashes --no-annotate --custom-compile-command "make lock"
lock:  ## pin what pyproject.toml asks for, with hashes, in requirements.txt and requirements-dev.txt
	$(LOCK) $(UPGRADE) --output-file requirements.txt
	$(LOCK) $(UPGRADE) --constraints requirements.txt --group dev --output-file requirements-dev.txt

jars: jars/target/.ready  ## fetch the jars that jars/*/pom.xml pin

jars/target/.ready: jars/pom.xml jars/sha256sums $(wildcard jars/*/pom.xml) $(shell find jars -name '*.java')
	@command -v mvn >/dev/null || { echo "Maven is missing; try: apt-get install maven"; exit 1; }
	@echo "== jars (about 210 MB the first time)"
	mvn -B -ntp -q -f jars/pom.xml clean process-resources
	@$(PYTHON) jars/sums.py
	@mkdir -p jars/target && touch $@

# The archive fits one class path and one set of the JVM's options.
jars/target/.archived: $(VENV)/.ready jars/target/.ready src/topiclake/session.py src/workbench/kernel/class_archive.py
	@echo "== classes into archives, which make each start of Spark, broker and registry faster (about a minute)"
	-@$(PY) -m workbench.kernel.class_archive jars
	@touch $@

wheel: setup  ## build the wheel into dist/, with the project's files and the jars of its Java classes
	$(PY) -m pip wheel --disable-pip-version-check -q --no-build-isolation --no-deps --wheel-dir dist .

demo: setup  ## run the main job on real input, on embedded services
	@$(PY) -m workbench demo

test: setup stores  ## the tests that every change must pass (about a quarter of an hour on two cores)
	$(PYTEST) $(QUICK) --junitxml=$(TIMES)/test.xml

test-all: setup stores chromium databases prometheus  ## every test (about an hour on two cores; installs Debian packages as root)
	$(PYTEST) $(QUICK) --junitxml=$(TIMES)/test.xml
	$(PYTEST) $(OTHER) --junitxml=$(TIMES)/others.xml

test-times: setup  ## the tests of the last runs above 20 s, with the reason of each
	@$(PY) -m tests.support.times

stores: setup
	@$(PY) -m tests.support.stores

chromium:
	@command -v chromium >/dev/null || { \
	  echo "== Chromium, for the tests of JupyterLab"; \
	  [ "$$(id -u)" = 0 ] || { echo "chromium is missing; try: sudo apt-get install chromium"; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

# Neither package starts a server: MariaDB's is the bare one, and the settings of PostgreSQL's create no cluster.
databases:
	@{ [ -x /usr/sbin/mariadbd ] && ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; } || { \
	  echo "== MariaDB and PostgreSQL, for the tests of the JDBC sink"; \
	  [ "$$(id -u)" = 0 ] || { echo "a server is missing; try: sudo apt-get install mariadb-server-core postgresql"; exit 1; }; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends mariadb-server-core postgresql-common && \
	  { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	    mkdir -p /etc/postgresql-common/createcluster.d && \
	    echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/topiclake.conf && \
	    apt-get install -y -qq --no-install-recommends postgresql; }; }; }

# Unpacked into a folder of ours: an installed package would start a server, and unpacking needs no root.
prometheus:
	@{ command -v prometheus && command -v promtool || [ -x .cache/prometheus/usr/bin/promtool ]; } >/dev/null || { \
	  echo "== Prometheus, for the tests of its alerts and of Grafana's dashboard"; \
	  rm -rf .cache/prometheus .cache/prometheus.new && mkdir -p .cache/prometheus.new && \
	  { [ "$$(id -u)" != 0 ] || apt-get update -qq; } && \
	  ( cd .cache/prometheus.new && apt-get -o APT::Sandbox::User=root download -qq prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb ) && \
	  mv .cache/prometheus.new .cache/prometheus || { \
	  echo "prometheus is missing; try: sudo apt-get update, and this again; or put prometheus and promtool on the PATH"; exit 1; }; }

# Three workers on two cores: some tests wait for processes.
test-unit: setup  ## the quick tests: no JVM, about half a minute
	$(PY) -m pytest -n 3 $(QUICK) tests/unit

check: setup  ## ruff, strict types, tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(MAKE) test

format: setup  ## format, and fix the findings that ruff can fix
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

typecheck: setup  ## strict types
	$(VENV)/bin/mypy

bench: setup  ## the article's code against ours on N records (N=20000000 for figures)
	$(PY) -m bench.gps_ingest --records $(N)

bench-batches: setup  ## what a micro-batch of 1,000 rows costs, against the article's
	$(PY) -m bench.micro_batches

bench-scale: setup  ## one worker of a Spark cluster against two, on N records
	$(PY) -m bench.scale --records $(N)

bench/iceberg/target/jars: bench/iceberg/pom.xml
	mvn -B -ntp -q -f $< clean process-resources

bench-race: setup bench/iceberg/target/jars  ## the article's code, a plain consumer, Iceberg's sink and ours on the same three topics
	$(PY) -m bench.race

bench-latency: setup bench/iceberg/target/jars  ## the time from a producer to the commit of each side of the race
	$(PY) -m bench.latency

soak: setup  ## 10,000 micro-batches, then a stream of an hour: the end must cost what the beginning did
	$(PY) -m bench.soak

torture: setup  ## kill an ingest 32 times while records flow, and eight further kinds 8 times each; seven writers on one table (about two hours)
	$(PY) -m bench.torture --records $(RECORDS) --kills $(KILLS)
	$(PY) -m bench.torture_kinds --kills $(KIND_KILLS)
	$(PY) -m bench.writers --seconds $(WRITE_SECONDS) --one-process
	$(PY) -m bench.writers --seconds $(WRITE_SECONDS)
	$(PY) -m bench.writers --seconds $(WRITE_SECONDS) --on abfss
	$(PY) -m bench.writers --seconds $(WRITE_SECONDS) --on folder

torture-short:  ## the same with 15 kills and a minute for each way to write (about 20 minutes)
	@$(MAKE) torture RECORDS=60000 KILLS=4 KIND_KILLS=1 WRITE_SECONDS=60

torture-cdc: setup  ## kill the ingests of a database's changes 30 times, and compare their tables with it (an hour)
	$(PY) -m bench.torture_changes

faults: setup  ## break each guard once, and see its test fail (about a quarter of an hour)
	$(PY) -m tests.mutation.plant_faults

reference: setup  ## write docs/reference from the code
	$(PY) docs/reference/generate.py

docs: reference  ## build the site of the pages into .cache/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -f docs/site/mkdocs.yml
	@echo "== open .cache/site/index.html"

screenshots: setup chromium  ## the pictures of the dashboard and the tutorials, of real streams (about ten minutes)
	$(PY) docs/images/screenshots.py
	$(PY) docs/images/tutorials.py

services-up: setup  ## start the embedded broker and registry, and leave them running
	@$(PY) -m workbench up

services-down: setup  ## stop them
	@$(PY) -m workbench down

clean:  ## remove .venv, jars and everything the workbench made
	@[ ! -x $(PY) ] || $(PY) -m workbench reset --yes
	rm -rf $(VENV) build dist jars/target jars/*/target .cache .pytest_cache .mypy_cache .ruff_cache
