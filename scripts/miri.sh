#!/usr/bin/env bash
# Runs the tests of the bucket and the ledger under miri, which needs a nightly compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() { echo "SKIP: miri: $*"; exit 0; }

command -v rustup >/dev/null || skip "rustup is not installed"
rustup toolchain list | grep -q '^nightly' || skip "no nightly compiler; rustup toolchain install nightly adds it"
rustup component add miri rust-src --toolchain nightly >/dev/null 2>&1 \
  || skip "the nightly compiler has no miri; rustup component add miri rust-src --toolchain nightly failed"

# No pointer is made of a number that does not come from one.
export MIRIFLAGS="-Zmiri-strict-provenance ${MIRIFLAGS-}"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
read -ra flags <<<"${CARGO_FLAGS-}"
cargo +nightly miri test "${flags[@]}" -p bonsai-bucket -p bonsai-ledger "$@" </dev/null
