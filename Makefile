# Flashgate: the things one can do. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Without a package's name cargo takes the workspace's default members: all that is native, in one profile
# and one target directory. What becomes WebAssembly is built apart, by ops/bin/wasm.sh and ops/bin/worker.sh.
export SQLX_OFFLINE := true
# A build from nothing is faster without what a later change would reuse.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

# Each step says how long it took.
define step
	@printf '\n== %s\n' '$(1)'; from=$$SECONDS; $(2) && printf '== %s: %d s\n' '$(1)' $$((SECONDS - from))
endef

.PHONY: help setup wasm worker build demo test check test-suites bench sqlx fmt clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: servers, Wasm targets (idempotent)
	@ops/bin/setup.sh

wasm: ## Build the Wasm components
	$(call step,wasm components,ops/bin/wasm.sh)

worker: ## Build the Cloudflare Worker into target/worker/ (installs its tools)
	$(call step,worker,ops/bin/worker.sh)

build: setup wasm ## Build everything: components and binaries
	$(call step,binaries,cargo build --bins)

demo: build ## 20,000 buyers fight over 100 phones; on a terminal it then stays up for you
	@target/debug/flashgate demo

test: check build test-suites ## All checks and all tests

check: ## Format, clippy without warnings, licences and bans, prepared queries
	@ops/bin/setup.sh check
	$(call step,format,cargo fmt --all --check)
	$(call step,dependencies,ops/bin/deny.sh)
	$(call step,wasm clippy,ops/bin/wasm.sh clippy)
	$(call step,clippy,cargo clippy --all-targets --quiet -- -D warnings)

test-suites: build worker ## The tests alone
	@ops/bin/setup.sh tests
	$(call step,tests,cargo test --no-fail-fast)
	$(call step,prepared queries,ops/bin/sqlx-prepare.sh --check)

bench: build worker ## Benchmarks: ratios of one run, to target/bench/report.json (PARTS="gate edge": only these)
	$(call step,benchmarks,target/debug/flashgate-bench $(PARTS))

sqlx: ## Prepare the compile-time checked queries again after a change to them or to migrations/
	@ops/bin/sqlx-prepare.sh

fmt: ## Format the code
	@cargo fmt --all

clean: ## Remove what was built here (tools outside the checkout stay)
	@cargo clean
