# `make run` and `make test` are all that a newcomer types: each installs what is missing (it says
# what, and asks on a terminal), builds and goes. The work is done by scripts/.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run demo test test-kernel regress bench bench-datagrams bench-link lab-kernel bpf-kernel check extension extension-check package docs fmt clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## Hawser in front of $DATABASE_URL, or of a throw-away PostgreSQL
	@scripts/run.sh

demo: ## a throw-away PostgreSQL, Hawser, and a live load
	@scripts/setup.sh demo && . scripts/env.sh && \
	cargo build --release --locked -p hawser && exec "$$target/release/hawser" demo

test: ## every test that this machine can run; ALL=1 installs what the rest needs; CHECKS=1: `make check`, too
	@ALL="$(ALL)" CHECKS="$(CHECKS)" scripts/test.sh

test-kernel: ## what needs another kernel than this one: its RDS, and its TLS; in an emulator, as root
	@scripts/setup.sh emulator && . scripts/env.sh && cargo build --release --locked -p hawser && \
	{ [ -e .run/bpf-kernel/tls.ko ] || scripts/bpf_kernel.sh; } && exec python3 tests/run.py --no-skips -k test_rds_kernel -k test_tls_kernel

regress: ## PostgreSQL's own suites, direct and through Hawser; ARGS are for tests/regress/run.py
	@scripts/regress.sh $(ARGS)

bench: ## direct, PgBouncer and Hawser in turns; ARGS are for bench/pooler/run.py
	@scripts/setup.sh bench && . scripts/env.sh && \
	cargo build --release --locked -p hawser && exec python3 bench/pooler/run.py $(ARGS)

bench-datagrams: ## the table of reliable datagrams, beside the kernel's own RDS; as root; ARGS are for bench/datagrams/rds.py
	@scripts/setup.sh emulator && . scripts/env.sh && cargo build --release --locked -p hawser && \
	{ [ -e .run/bpf-kernel/rds_tcp.ko ] || scripts/bpf_kernel.sh; } && exec python3 bench/datagrams/rds.py $(ARGS)

bench-link: ## the table of the link, beside what one would take instead; as root, for hours; ARGS are for bench/link/link.py
	@scripts/setup.sh emulator && . scripts/env.sh && cargo build --release --locked -p hawser && \
	exec python3 bench/link/link.py --page docs/benchmarks/link.md $(ARGS)

lab-kernel: ## the kernel of bench/congestion/algorithms.py: all congestion control algorithms, in virtual time
	@scripts/lab_kernel.sh

bpf-kernel: ## a kernel with RDS and TLS, for tests in an emulator
	@scripts/bpf_kernel.sh

check: ## formatting, clippy, ruff and the workspace's own rules, without a test
	@scripts/setup.sh check && . scripts/env.sh && cargo fmt --all --check && scripts/ruff.sh && \
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings && cargo xtask check && cargo xtask house

extension: ## build the PostgreSQL extension; PG_CONFIG chooses the server; sudo make -C extension install
	@scripts/setup.sh extension && . scripts/env.sh && $(MAKE) --no-print-directory -C extension PG_CONFIG="$$(pg_config_program)"

extension-check: ## build and install the extension, and run all of its tests
	@scripts/setup.sh extension && . scripts/env.sh && \
	cargo build --release --locked -p hawser && \
	PG_CONFIG="$$(pg_config_program)" HAWSER="$$target/release/hawser" extension/check.sh

package: ## .deb of program and extension, static program, image, SBOM: in target/package; ARCH=arm64 crosses
	@scripts/setup.sh extension && scripts/package.sh $(ARGS)

docs: ## the manual as a site, by mdBook, in target/docs; checks its links
	@scripts/setup.sh test && . scripts/env.sh && scripts/docs.py

fmt: ## format
	@. scripts/env.sh && cargo fmt --all

clean: ## remove what was built and logged
	@. scripts/env.sh && cargo clean && rm -rf .run bench/out
