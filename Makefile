# Thin: each target is a line or two; what it runs can be run by hand.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

BIN := target/debug/rollyard
DEMO := target/demo

.PHONY: help setup build demo test python lint bench soak clean-demo

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## install what is missing (Debian packages, cargo-nextest)
	@.ci/setup build

build: setup ## build the binary
	cargo build --locked

demo: build ## run three jobs on an embedded yard: hello, 40 rollouts that misbehave, 32 repair tasks
	$(BIN) --data-dir $(DEMO)/yard run docs/examples/hello.yaml --table $(DEMO)/out
	$(BIN) --data-dir $(DEMO)/yard run docs/examples/forty.yaml --table $(DEMO)/out
	$(BIN) --data-dir $(DEMO)/yard run docs/examples/repair/repair.yaml --table $(DEMO)/out

test: ## install what is missing, run every test
	@.ci/setup test
	.ci/test

python: build ## the Python package: its environment, its types, its tests on the real binary
	python3 tests/e2e/environments.py
	target/venv-datasets5/bin/python -m pytest -q tests/e2e/test_python.py tests/e2e/test_sandbox*.py -p no:cacheprovider

lint: ## formatting and lints only
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

bench: setup ## the benches beside their peers and floors, one JSON line each (minutes, a quiet machine)
	for bench in create burst session idle density checkpoint rollout; do cargo run --locked --release -p benches -- $$bench || exit 1; done

soak: build ## 10,000 sandboxes and thousands of rollouts under kill -9 of every part, the largest sizes, census after each
	.ci/soak

clean-demo: ## forget the demo's yard and tables
	rm -rf $(DEMO)
