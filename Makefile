# One environment for everything: .venv in this checkout, made on the first use of any target.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/ready
OTHER := .venv/other-numpy/ready
OTHER_NUMPY := numpy==1.26.4 cloudpickle psutil threadpoolctl array-api-compat
EXTRAS := dev,torch,train,jax,opencl,vulkan,joblib,adapters,tune,compress,batch,encrypt,onnx,mpi,metrics,prices,bench
FAST := $(wildcard tests/pure tests/sim tests/golden tests/docs tests/backend)
BENCHMARKS := $(filter-out benchmarks/common.py benchmarks/rivals.py benchmarks/summary.py benchmarks/work.py, $(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-servers mutation lint format bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(READY) $(OTHER) ## make .venv with everything that development needs

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "hetero needs Python 3.11 or newer; none was found on the PATH" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# Tests run one device's worker in an environment with another NumPy than the program's.
$(OTHER): | $(READY)
	@test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check $(OTHER_NUMPY)
	@touch $@

demo: $(READY) ## run the main job: a tiled Cholesky and a stencil over this host's devices
	$(BIN)/hetero demo
	$(BIN)/hetero train examples/mnist.yaml --set output=build/mnist-run

test: $(READY) $(OTHER) ## run every test that needs no servers (about 13 minutes on 2 cores)
	.ci/test

test-servers: $(READY) $(OTHER) ## run what needs Ray clusters, namespaces, browsers or minutes (at most 30 minutes; root)
	.ci/test servers

test-fast: $(READY) ## run the quick tests (at most 2 minutes)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(FAST)

mutation: $(READY) ## change the code that decides in small ways: do pure tests notice? (at most 5 minutes; weekly in CI)
	$(BIN)/python -m tests.mutation

lint: $(READY) ## style, types on three operating systems, and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin
	$(BIN)/mypy --platform win32
	$(BIN)/lint-imports

format: $(READY) ## bring every file into the form that `make lint` asks for
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format .

bench: $(READY) ## run every benchmark and rewrite the table in benchmarks/README.md
	@for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	$(BIN)/python benchmarks/summary.py

clean: ## remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
