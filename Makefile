# Switchyard: `make up` starts a rack, `make test` runs everything that a change has to pass.

SEED ?= 1
EXECUTIONS ?= 10000000
SEEDS ?= 0..200
PREFIX ?= /usr/local
WHEELS ?= target/wheels
TIMES ?= 1
MINUTES ?= 60

.PHONY: up build test deps build-deps fmt lint unit system fuzz swarm torture matrix nemesis install wheel help

up: build ## install what is missing, build, start a whole rack in one process
	./target/release/switchyard up

build: build-deps
	cargo build --release --workspace

test: deps fmt lint unit system ## every check: formatting, lints, unit and simulation tests, system tests

deps: ## install the tools that building and testing need
	./scripts/deps.sh test

build-deps:
	./scripts/deps.sh build

fmt: ## check the formatting
	cargo fmt --all --check

lint: ## clippy, warnings are errors
	cargo clippy --workspace --all-targets -- -D warnings

unit:
	cargo test --workspace --no-fail-fast

# With the build of the unit tests: it is there already, and keeps every assertion.
system: build-deps
	cargo build --workspace --lib --bins --tests --profile test
	SWITCHYARD="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/switchyard" ./tests/system/run.sh

fuzz: ## fuzz the wire formats (EXECUTIONS, SEED)
	cargo run --release -p switchyard-wire --example fuzz -- --executions $(EXECUTIONS) --seed $(SEED)

swarm: build ## simulate whole racks under faults (SEEDS=first..last)
	./target/release/switchyard sim swarm --seeds $(SEEDS)

torture: build ## random programs under `run`, with kills and power cuts; as root (SEEDS=first..last)
	./tests/torture/run --seeds $(SEEDS)

nemesis: build ## real racks under faults of every kind, with a checker; as root (MINUTES, SEED: the first one)
	./tests/nemesis/run --minutes $(MINUTES) --seed $(SEED)

install: build-deps ## the library for C, its header and the Python package (PREFIX, DESTDIR)
	cargo build --release -p switchyard-capi
	PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' ./crates/capi/install.sh target/release

wheel: build-deps ## the Python package with its library, for pip (WHEELS=directory)
	python3 crates/capi/python/backend.py '$(WHEELS)'

matrix: build ## ordinary programs with and without `run`: same results, nothing lost (TIMES)
	./scripts/deps.sh matrix
	./tests/matrix/run --times $(TIMES)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
