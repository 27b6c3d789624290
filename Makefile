# Bonsai: build, demo, test, benchmark, install. `make` alone says what there is.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Passed on to every cargo call that builds the product, for example --locked or --offline.
CARGO_FLAGS ?=
# Passed on to `cargo test`, for example TEST_ARGS='-p bonsai-bucket'.
TEST_ARGS ?=
# Passed on to tests/transparency/run.sh, for example TRANSPARENCY_ARGS='--suite redis'.
TRANSPARENCY_ARGS ?=
# Passed on to `bonsai-bench run`, for example BENCH_ARGS='--quick call-cost'.
BENCH_ARGS ?=

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# Program and libraries side by side: what `make install` installs.
DIST := $(TARGET)/bonsai
# The same libraries with the program as a development build makes it, which checks more and is
# built with the tests, in half the time: what `make test` runs.
CHECKED := $(TARGET)/checked
export CARGO_TARGET_DIR := $(TARGET)
export BONSAI_BIN_DIR := $(DIST)
export CARGO CARGO_FLAGS

# The preload library brings its own panic handler and builds only with its own profile.
WORKSPACE := --workspace --exclude bonsai-preload
PRELOAD := --package bonsai-preload --profile preload
# The same for programs without a loader; as a library it has the same name.
ENGINE := $(PRELOAD) --features alone --target-dir "$(TARGET)/alone"
# And what either of them maps where a service needs it.
# Few processes map it, and each call that it decides on is slower by what its code is: for
# speed instead of size.
FAST := $(foreach of,opt-level package.bonsai-bucket.opt-level package.bonsai-ledger.opt-level,--config profile.preload.$(of)=3)
EXTENSION := $(PRELOAD) --features extension --target-dir "$(TARGET)/extension" $(FAST)

.PHONY: help
help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: deps deps-build deps-test deps-demo deps-bench deps-transparency deps-guests
deps: ## install the Debian packages that building, tests and demo need (as root; otherwise name them)
	@scripts/deps.sh --packages build test demo

deps-build:
	@scripts/deps.sh build

# A test whose program is not there is skipped with its reason; so is a peer of a benchmark.
deps-test:
	@scripts/deps.sh --optional build test

deps-demo:
	@scripts/deps.sh build demo

deps-bench:
	@scripts/deps.sh --optional build bench

deps-transparency:
	@scripts/deps.sh --optional build test transparency

deps-guests:
	@scripts/deps.sh --optional build test guests

.PHONY: sysroot
sysroot:
	@scripts/sysroot.sh "$(TARGET)/sysroot"

.PHONY: build build-libraries build-checked
build: deps-build build-libraries ## build the program and the library into target/bonsai/
	@$(CARGO) build $(CARGO_FLAGS) --release --package bonsai
	@$(call side-by-side,$(DIST),release)

build-libraries: deps-build sysroot
	@$(CARGO) build $(CARGO_FLAGS) $(PRELOAD)
	@$(CARGO) build $(CARGO_FLAGS) $(ENGINE)
	@$(CARGO) build $(CARGO_FLAGS) $(EXTENSION)

# With the features that the tests' build has, or everything would be built twice.
build-checked: deps-build build-libraries
	@$(CARGO) test $(CARGO_FLAGS) $(WORKSPACE) --no-run
	@$(call side-by-side,$(CHECKED),debug)

define side-by-side
	mkdir -p "$(1)"; \
	install -m 755 "$(TARGET)/$(2)/bonsai" "$(1)/bonsai"; \
	install -m 644 "$(TARGET)/preload/libbonsai_preload.so" "$(1)/libbonsai_preload.so"; \
	install -m 644 "$(TARGET)/alone/preload/libbonsai_preload.so" "$(1)/libbonsai_engine.so"; \
	install -m 644 "$(TARGET)/extension/preload/libbonsai_preload.so" "$(1)/libbonsai_extension.so"
endef

.PHONY: demo
demo: build deps-demo ## a first look: two real servers, one of them noisy; ends with a page of plots
	@scripts/demo.sh

.PHONY: demo-guests
demo-guests: build deps-guests ## two Debian guests boot from the block server; ends with what they share (root)
	@scripts/demo-guests.sh

.PHONY: test test-release
test: deps-test build-checked ## run every test; the last line is: N passed, N failed, N skipped
	@tests/hosts/roots.sh "$(TARGET)/hosts" bullseye trixie
	@BONSAI_BIN_DIR="$(CHECKED)" scripts/test.sh $(TEST_ARGS)

test-release: deps-test build ## the same with the program that is installed
	@scripts/test.sh $(TEST_ARGS)

# A kernel of 14 MB and four small Debian systems (200 MB) are fetched, and an emulator and an engine of containers are
# installed: not by default. The disks take 1 GB, and some minutes the first time.
.PHONY: test-guests
test-guests: deps-guests build-checked ## real virtual machines and containers: their limits, and disks from the block server
	@tests/guests/kernel.sh "$(TARGET)/guests"
	@tests/guests/images.sh "$(TARGET)/guests/disks"
	@BONSAI_BIN_DIR="$(CHECKED)" BONSAI_GUEST_KERNEL="$(TARGET)/guests" scripts/test.sh --package bonsai --test it guests::
	@BONSAI_BIN_DIR="$(CHECKED)" BONSAI_GUEST_KERNEL="$(TARGET)/guests" scripts/browser-tests.sh guest

# Debian's archive is asked for some 40 MB. `make test` runs a part of this, where they are there.
.PHONY: libcs test-libcs
libcs: deps-guests
	@tests/hosts/libcs.sh --frames "$(TARGET)/libcs"

test-libcs: libcs deps-test build-checked ## calls, waits and cancellation with the C libraries of other releases of Debian
	@for libc in "$(TARGET)"/libcs/*/; do \
		echo "--- $$libc"; \
		BONSAI_BIN_DIR="$(CHECKED)" BONSAI_TEST_LIBC="$${libc%/}" scripts/test.sh --package conformance --test it \
			calls:: unwind:: transparency:: interrupted:: sleepers:: loops:: || exit 1; \
	done

# Root file systems of other releases: 160 MB each, and 1.0 to 1.3 GB each with servers, runtimes and more programs. `make test` has the
# small ones of the oldest release and of Debian's stable one; RELEASES names others, PROGRAMS some of tests/hosts/more.txt.
RELEASES ?= bullseye bookworm trixie sid
PROGRAMS ?=
.PHONY: hosts test-hosts
hosts: deps-guests
	@tests/hosts/roots.sh "$(TARGET)/hosts" $(RELEASES)
	@tests/hosts/roots.sh --more "$(TARGET)/hosts-more" $(RELEASES)

test-hosts: hosts deps-test build-checked ## programs and servers of other releases of Debian and of musl, each limited or named; ends with tables (10 minutes)
	@rm -f "$(TARGET)/hosts.md"
	@BONSAI_BIN_DIR="$(CHECKED)" BONSAI_HOSTS="$(TARGET)/hosts" BONSAI_HOSTS_MORE="$(TARGET)/hosts-more" BONSAI_HOSTS_TABLE="$(TARGET)/hosts.md" \
		BONSAI_HOSTS_PROGRAMS="$(PROGRAMS)" scripts/test.sh --package conformance --test it hosts:: -- --test-threads 1
	@cat "$(TARGET)/hosts.md"

# Kernels of these releases, 20 to 60 MB each. Every one is booted four times in an emulator, two at a time: a quarter of an hour. KERNELS names others.
KERNELS ?= bullseye bookworm trixie sid
.PHONY: kernels test-kernels
kernels: deps-guests
	@tests/hosts/kernels.sh "$(TARGET)/kernels" $(KERNELS)

test-kernels: kernels deps-test build-checked ## kernels of four releases of Debian, in an emulator: what they have is limited, what they lack is said (15 minutes)
	@BONSAI_BIN_DIR="$(CHECKED)" BONSAI_KERNELS="$(TARGET)/kernels" BONSAI_KERNELS_TABLE="$(TARGET)/kernels.md" \
		scripts/test.sh --package conformance --test it kernels::
	@cat "$(TARGET)/kernels.md"

# What the short versions in `make test` do, for long. As root; what cannot be is skipped with its reason.
.PHONY: test-integrity
test-integrity: deps-test ## the block server: 10 million operations, 1,000 kills, power cuts and outside writes, 100 GB verified (an hour and more)
	@BONSAI_NBD_FSX=10000000 BONSAI_NBD_FIO_GB=100 BONSAI_NBD_OPERATIONS=50000 \
		$(CARGO) test $(CARGO_FLAGS) --release --package bonsai-nbd --test it -- --nocapture exercise mounted model
	@BONSAI_NBD_KILLS=1000 BONSAI_NBD_CUTS=1000 BONSAI_NBD_OUTSIDE=1000 \
		$(CARGO) test $(CARGO_FLAGS) --package bonsai --test it -- --nocapture drive::kills drive::powercut drive::outside

.PHONY: transparency
transparency: deps-transparency build ## run suites of other projects bare and under limits (over an hour)
	@tests/transparency/run.sh $(TRANSPARENCY_ARGS)

.PHONY: bench
bench: deps-bench build ## run the benchmarks, side by side with the peers that are installed
	@$(CARGO) build $(CARGO_FLAGS) --release --package bonsai-lab --bin bonsai-bench
	@"$(TARGET)/release/bonsai-bench" run $(BENCH_ARGS)
	@$(if $(BENCH_ARGS),:,$(MAKE) --no-print-directory bench-senders)

.PHONY: bench-senders
bench-senders: build ## which part of a limit senders reach: each kind at an interface, and 100 in each of 200 services (20 minutes, root)
	@if [ "$$(id -u)" = 0 ]; then \
	  scripts/link-senders.sh "$(TARGET)/bonsai/bonsai" "$(TARGET)/link-senders" $(SENDERS_ARGS); \
	else echo "bench-senders: skipped: network namespaces need root"; fi
	@scripts/many-senders.sh "$(TARGET)/bonsai/bonsai" "$(TARGET)/many-senders"

.PHONY: dnba
dnba: deps-bench build ## the experiments of DNBA, beside the paper's figures: tables, and plots in target/figures (20 minutes, root)
	@$(CARGO) build $(CARGO_FLAGS) --release --package bonsai-lab --bin bonsai-bench
	@"$(TARGET)/release/bonsai-bench" run link-paper --figure "$(TARGET)/figures/dnba-limits.svg" $(BENCH_ARGS)
	@"$(TARGET)/release/bonsai-bench" run --full link-media --figure "$(TARGET)/figures/dnba-media.svg"

# The trace of four guests is not in this repository: DATA names the folder with traces/. TRACES are more, or FIU's as the thesis has
# them: "homes.btr webvm.btr homes.btr+webvm.btr".
DATA ?= $(or $(BONSAI_DATA),../shared/data)
.PHONY: drive-table
drive-table: build ## the thesis' table on our traces, beside its figures, and curves of every size: tables, pages, and plots in target/figures (a minute)
	@mkdir -p "$(TARGET)/figures"
	@"$(TARGET)/release/bonsai" trace import --by-process "$(DATA)/traces/debian4.fiu.zst" -o "$(TARGET)/debian4.btr"
	@"$(TARGET)/release/bonsai" sim table "$(TARGET)/debian4.btr" $(TRACES) --cache $(or $(CACHE),512MiB) \
		--html "$(TARGET)/figures/drive-table.html" --figure "$(TARGET)/figures/drive-table.svg"
	@"$(TARGET)/release/bonsai" sim curve "$(TARGET)/debian4.btr" \
		--html "$(TARGET)/figures/drive-curve.html" --figure "$(TARGET)/figures/drive-curve.svg"

.PHONY: drive-figures
drive-figures: deps-bench build ## what four guests read, through the block server and nbdkit, in little memory: tables, and a plot in target/figures (20 minutes, root)
	@$(CARGO) build $(CARGO_FLAGS) --release --package bonsai-lab --bin bonsai-bench
	@"$(TARGET)/release/bonsai-bench" run nbd-replay --figure "$(TARGET)/figures/nbd-replay.svg" $(BENCH_ARGS)

# What a minute or two each shows; BENCH_ARGS="--effort normal" and --full take longer. A promise that was
# broken fails it, after all have run.
.PHONY: media
media: deps-bench build ## the experiments with media of papers 000 and 002: tables, and plots in target/figures (5 minutes, root)
	@$(CARGO) build $(CARGO_FLAGS) --release --package bonsai-lab --bin bonsai-bench
	@code=0; for name in media-002 media-fig11 media-fig12 media-ten; do \
		"$(TARGET)/release/bonsai-bench" run $(or $(BENCH_ARGS),--quick) $$name \
			--figure "$(TARGET)/figures/$$name.svg" || code=$$?; \
	done; exit $$code

.PHONY: model
model: ## check the ledger under every order of memory accesses that loom can find
	@CARGO_TARGET_DIR="$(TARGET)/loom" RUSTFLAGS="--cfg loom" \
		$(CARGO) test $(CARGO_FLAGS) --package bonsai-ledger --release --test loom --test loom_groups

.PHONY: miri
miri: ## check buckets and ledger for undefined behaviour (nightly)
	@scripts/miri.sh

.PHONY: fuzz-smoke
fuzz-smoke: ## run each fuzz target for a few seconds (nightly, cargo-fuzz)
	@scripts/fuzz-smoke.sh

# FUZZ_CALLS=50000000 takes hours; MODES, FUZZ_SEED: scripts/fuzz-calls.sh.
.PHONY: fuzz-calls
fuzz-calls: deps-test build ## random and hostile calls, bare and in every mode: a million in each, FUZZ_CALLS=N for more (minutes)
	@scripts/fuzz-calls.sh

.PHONY: fmt
fmt: ## format the sources
	@$(CARGO) fmt --all

.PHONY: lint lint-fmt lint-rust lint-deps lint-shell lint-tree
lint: lint-fmt lint-rust lint-deps lint-shell lint-tree ## formatting, clippy, licences, shell scripts, and the rules of the tree

lint-fmt:
	@$(CARGO) fmt --all --check

lint-rust:
	@$(CARGO) clippy $(CARGO_FLAGS) $(WORKSPACE) --all-targets -- -D warnings
	@$(CARGO) clippy $(CARGO_FLAGS) $(PRELOAD) -- -D warnings
	@$(CARGO) clippy $(CARGO_FLAGS) $(ENGINE) -- -D warnings
	@$(CARGO) clippy $(CARGO_FLAGS) $(EXTENSION) -- -D warnings

lint-deps:
	@if command -v cargo-deny >/dev/null; then \
		$(CARGO) deny --log-level error check bans licenses sources; \
	else \
		echo "SKIP: lint-deps: cargo-deny is not installed; cargo install cargo-deny adds it"; \
	fi

lint-shell:
	@scripts/lint-shell.sh

lint-tree:
	@$(CARGO) xtask tidy

.PHONY: gen
gen: ## write the manual page, the completions and the references anew
	@$(CARGO) xtask gen

.PHONY: doc
doc: ## build the documentation of the crates
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CARGO_FLAGS) $(WORKSPACE) --no-deps
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CARGO_FLAGS) --package bonsai-preload --no-deps

.PHONY: install
install: ## install below PREFIX (/usr/local) what `make build` has built
	@scripts/install.sh "$(DIST)" "$(DESTDIR)$(PREFIX)"

.PHONY: uninstall
uninstall: ## remove what `make install` has installed
	@scripts/install.sh --remove "$(DESTDIR)$(PREFIX)"

.PHONY: clean
clean: ## remove everything that was built
	@$(CARGO) clean
