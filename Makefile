# Everything made here lies in .venv, .venv-extras, .venv-tools, .cache, runs and dist; nothing else of the machine is touched.
PYTHON ?= python3
ARGS :=
BIN := .venv/bin
ENGINE ?= $(notdir $(firstword $(shell command -v podman docker)))
IMAGE ?= dbelief:latest
FILE ?= deploy/Dockerfile
TORCH ?= torch==2.13.0
# One more than there are cores: tests of real processes wait for a third of their time. More than four gain nothing.
TEST_PROCESSES ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4)))

export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
export NUMBA_CACHE_DIR := $(CURDIR)/.cache/numba
# Processes start in half the time where bytecode is kept: it is, even where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help run test lint hooks docs protos verify-protos clean test-long test-extras test-portable test-pythons test-deploy test-containers test-slurm test-ray check-device simulate model conformance histories bench measure bench-kernels bench-replicas bench-rates bench-memory bench-kills bench-churn bench-coordinator bench-wire bench-snapshots image package lock audit manifests dashboards bench-advise

##@ Everyday

help: ## this list
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-15s  %s\n", $$1, $$2 }' Makefile

run: .venv/ready-to-run ## train the handwritten digits: 2 shards, 3 replicas; results in runs/digits
	@$(BIN)/dbelief train examples/digits.yaml $(ARGS)

test: .venv/ready-to-develop ## tests that must always pass, minutes; a part: make test ARGS='tests/dbelief/optim -k adagrad'
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

lint: .venv/ready-to-develop ## ruff, its formatter, mypy strict, and import-linter
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

hooks: ## have git run `make lint` before each commit of this clone
	@hook=$$(git rev-parse --git-path hooks)/pre-commit; mkdir -p "$$(dirname "$$hook")"; \
	if [ -e "$$hook" ] && ! grep -q 'make --silent lint' "$$hook"; then echo "$$hook exists: add \`make lint\` to it" >&2; exit 1; fi; \
	printf '#!/bin/sh\nexec make --silent lint\n' > "$$hook" && chmod +x "$$hook" && echo "$$hook runs \`make lint\`"

docs: .venv/ready-to-document ## build the documentation site into .cache/site, offline and strictly
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@$(BIN)/python -m docs.generators.check_site .cache/site

# $(call protoc,FOLDER): the messages of all protos, services only where there are some.
define protoc
PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Idbelief/rpc/pb=protos \
	--python_out=$(1) --mypy_out=$(1) protos/*.proto
PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Idbelief/rpc/pb=protos \
	--grpc_python_out=$(1) --mypy_grpc_out=$(1) protos/parameters.proto protos/coordination.proto
endef

protos: .venv/ready-to-develop ## make dbelief/rpc/pb/*_pb2* from protos/
	$(call protoc,.)

verify-protos: .venv/ready-to-develop ## check that dbelief/rpc/pb/*_pb2* match protos/
	@rm -rf .cache/protos && mkdir -p .cache/protos/committed .cache/protos/made
	@cp dbelief/rpc/pb/*_pb2*.py* .cache/protos/committed
	$(call protoc,.cache/protos/made)
	@cd .cache/protos && diff -ru committed made/dbelief/rpc/pb || \
		{ echo "dbelief/rpc/pb is not what protos/ says: run \`make protos\`" >&2; exit 1; }

clean: ## remove .venv, .venv-extras, .venv-tools, caches and dist; runs/ stays
	rm -rf .venv .venv-extras .venv-tools .cache dist
	find benchmarks coordinator dbelief examples ps_server tests worker -name __pycache__ -prune -exec rm -rf {} +

##@ Longer tests

test-long: .venv/ready-to-develop ## tests of half an hour: every process killed, a bad network, all Hypothesis examples
	@$(BIN)/pytest -m "(long or hypothesis) and not deploy and not slurm" --hypothesis-profile=many -n 2 --dist worksteal -rP $(ARGS)

test-extras: .venv-extras/ready ## tests that need torch, trackers or S3, which `make test` skips: in .venv-extras, with all extras
	@.venv-extras/bin/pytest -m "(torch or storage or trackers or kubernetes) and not deploy and not slurm and not ray" -n 2 --dist worksteal $(ARGS)

test-portable: .venv/ready-to-develop ## numeric tests compiled for other processors: the same bits (docs/explanation/portability.md)
	@$(BIN)/python -m tests.portable $(ARGS)

test-pythons: package ## the wheel in empty environments of Python 3.11, 3.12, 3.13, and a job; needs a package index
	@$(BIN)/python -m tests.packaging.pythons $(ARGS)

test-deploy: .venv/ready-to-develop ## contents of deploy/, with real podman, Prometheus and npm (CONTRIBUTING.md); minutes
	@$(BIN)/pytest -m deploy tests/deploy $(ARGS)

test-containers: .venv/ready-to-develop ## image and compose file in real containers, each of them killed in turn; root and podman
	@$(BIN)/python -m tests.containers $(ARGS)

test-slurm: .venv/ready-to-develop ## whole jobs on a Slurm cluster on this host, nodes killed; root and Debian's Slurm and munge
	@why=$$($(BIN)/python -c 'from tests.deploy.slurm_cluster import missing; print(missing())'); \
	if [ -n "$$why" ]; then echo "skipped: $$why"; else $(BIN)/pytest -m slurm -rP tests/deploy/test_real_slurm.py $(ARGS); fi

test-ray: .venv-extras/ready ## whole jobs on a real Ray cluster of three nodes on this host, minutes
	@.venv-extras/bin/pytest -m ray tests/dbelief/launch/ray $(ARGS)

check-device: .venv/ready-to-develop ## all that needs a CUDA device, and measurements, 8 minutes; without one: ARGS=--stand-in
	@$(BIN)/python -m benchmarks.device $(ARGS)

simulate: .venv/ready-to-develop ## whole clusters under seeds, virtual time and faults: make simulate ARGS="--seeds 1000"
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(ARGS)

model: .venv/ready-to-develop ## every run of the protocol's model, and its planted errors; Debian's spin and gcc, 8 GiB, 40 minutes
	@$(BIN)/python -m tests.model.search

conformance: .venv/ready-to-develop ## simulated runs are runs of the model: 1,000 of them, half an hour; Debian's spin and gcc
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.conformance $(ARGS)

histories: .venv/ready-to-develop ## 10 million operations of real processes under faults, checked; hours, goes on where it ended
	@$(BIN)/python -m tests.histories $(ARGS)

##@ Benchmarks

bench: .venv/ready-to-develop ## every benchmark, one after the other
	@$(BIN)/dbelief bench apply
	@$(BIN)/dbelief bench kernels
	@set -e; for script in $$(grep -rl --include="*.py" "^if __name__" benchmarks | sort); do \
		echo "== $$script"; $(BIN)/python -m $$(echo $${script%.py} | tr / .); done

measure: .venv/ready-to-develop ## a measurement again: make measure SUBJECT=small_step (ARGS=--check: compare only); no SUBJECT: all names
	@$(BIN)/python -m benchmarks.measure $(SUBJECT) $(ARGS)

bench-kernels: .venv/ready-to-develop ## block-local kernels against one dense product, on the GPU where there is one
	@$(BIN)/dbelief bench kernels $(ARGS)

bench-replicas: .venv/ready-to-develop ## accuracy at 1, 2, 4, 8 replicas on MNIST (in DBELIEF_DATA), three seeds
	@$(BIN)/python -m benchmarks.accuracy.replicas $(ARGS)

bench-rates: .venv/ready-to-develop ## plain SGD at a fixed rate beside Adagrad with a warm start, as bench-replicas
	@$(BIN)/python -m benchmarks.accuracy.learning_rates $(ARGS)

bench-memory: .venv/ready-to-develop ## memory of a shard under load for ten minutes, and its growth
	@$(BIN)/python -m benchmarks.shards.memory $(ARGS)

bench-kills: .venv/ready-to-develop ## MNIST (in DBELIEF_DATA) with any one process killed, five times each
	@$(BIN)/python -m benchmarks.faults.kills $(ARGS)

bench-churn: .venv/ready-to-develop ## deaths over all roles for ten minutes of MNIST (in DBELIEF_DATA), torchrun beside; hours: ARGS='--plan a|b|c --job mnist|elastic|diloco|diloco-quorum'
	@$(BIN)/python -m benchmarks.faults.churn $(ARGS)

bench-advise: .venv/ready-to-develop ## what bounds a job, in nine situations, and whether the advice is reached (half an hour; DBELIEF_HOSTNET for three of them)
	@$(BIN)/python -m benchmarks.advise.situations $(ARGS)

bench-coordinator: .venv/ready-to-develop ## a coordinator with 16 to 1,000 simulated members
	@$(BIN)/python -m benchmarks.coordinator.members $(ARGS)

bench-wire: .venv/ready-to-develop ## pull, push and exchange against a bare socket
	@$(BIN)/dbelief bench wire $(ARGS)

bench-snapshots: .venv/ready-to-develop ## pushes with and without a snapshot set being written, and the time of a set
	@$(BIN)/python -m benchmarks.shards.snapshots $(ARGS)

##@ Images and deployment

image: ## build the image of all roles, dbelief:latest, with podman or docker; EXTRAS=s3,parquet adds extras
	@$(ENGINE) build $(if $(findstring podman,$(ENGINE)),--format docker) $(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) \
		-f $(FILE) -t $(IMAGE) $(ARGS) .
	@echo "$(IMAGE): its Python packages, as CycloneDX JSON, are in /opt/dbelief/sbom.json"

package: .venv/ready-to-develop ## build and check the source archive, and the wheel from it, into dist/: always the same bytes
	@rm -rf dist && mkdir -p .cache
	@$(BIN)/python -m build --no-isolation --outdir dist . > .cache/build.log || { cat .cache/build.log >&2; exit 1; }
	@$(BIN)/twine check --strict dist/*
	@cd dist && sha256sum *

lock: .venv-tools/ready ## make deploy/packaging/lock.txt from pyproject.toml; the newest versions: make lock ARGS=--upgrade
	@.venv-tools/bin/python deploy/packaging/locked.py --all | .venv-tools/bin/uv pip compile --quiet --universal \
		--python-version 3.11 --generate-hashes --only-binary :all: --custom-compile-command "make lock" \
		--override deploy/packaging/left_out.txt --output-file deploy/packaging/lock.txt $(ARGS) - > /dev/null

audit: .venv-tools/ready ## known vulnerabilities of the locked packages; asks the package index: SECURITY.md has the answers
	@PYTHONPATH=. .venv-tools/bin/python -m deploy.packaging.audit $(ARGS)

manifests: .venv/ready-to-develop ## make deploy/kubernetes/base/objects.yaml from the job beside it
	@cd deploy/kubernetes/base && DBELIEF_DATA= ../../../$(BIN)/dbelief kubernetes render job.yaml --prefix '' > objects.yaml

dashboards: .venv/ready-to-develop ## make deploy/grafana/dashboards/ from deploy/grafana/boards/
	@$(BIN)/python deploy/grafana/make.py

# $(call install,ENVIRONMENT,PARTS): packages of these parts as deploy/packaging/lock.txt has them. The marks of an
# environment are older than the lock after a change of it, so that packages are installed again.
LOCKED := pyproject.toml deploy/packaging/lock.txt
define install
@test -x $(1)/bin/pip || $(PYTHON) -m venv $(1)
@$(1)/bin/python deploy/packaging/locked.py $(2) > $(1)/needed.txt
@$(1)/bin/pip install -qq -r $(1)/needed.txt
endef

# Editable: what is edited is what runs. Its build takes setuptools from the environment, which has the locked one.
define install-dbelief
@$(1)/bin/pip install -qq --no-deps --no-build-isolation --editable .
endef

.venv/ready-to-run: PARTS :=
.venv/ready-to-develop: PARTS := dev
.venv/ready-to-document: PARTS := docs
.venv/ready-to-run .venv/ready-to-develop .venv/ready-to-document: $(LOCKED)
	$(check-python)
	@echo "installing dbelief$(PARTS:%=[%]) into .venv (once; about a minute)"
	$(call install,.venv,build run $(PARTS))
	$(call install-dbelief,.venv)
	@touch .venv/ready-to-run $@

# Apart from .venv, in which `make test` shows that nothing else needs an extra. Where torch's default build is one for
# GPUs, install the CPU's there before, or name it: make test-extras TORCH=FILE.whl
.venv-extras/ready: $(LOCKED)
	$(check-python)
	@echo "installing dbelief with torch and all other extras into .venv-extras (once; some minutes)"
	$(call install,.venv-extras,build run dev tensorboard mlflow parquet images kubernetes kubernetes-tests ray ray-tests s3 storage-tests)
	$(call install-dbelief,.venv-extras)
	@.venv-extras/bin/pip install -qq $(TORCH) tensorboard
	$(call install,.venv-extras,trainers)
	@touch $@

.venv-tools/ready: $(LOCKED)
	$(check-python)
	$(call install,.venv-tools,tools)
	@touch $@

define check-python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dbelief needs Python 3.11 or newer, \
	and \`$(PYTHON)\` is not; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
endef
