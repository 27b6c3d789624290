#!/usr/bin/env bash
# Runs each fuzz target for SECONDS_EACH seconds (10 unless set).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() { echo "SKIP: fuzz-smoke: $*"; exit 0; }

[ -d fuzz ] || skip "there are no fuzz targets"
command -v cargo-fuzz >/dev/null || skip "cargo-fuzz is not installed; cargo install cargo-fuzz adds it"
rustup toolchain list 2>/dev/null | grep -q '^nightly' \
  || skip "no nightly compiler; rustup toolchain install nightly adds it"

targets=$(cargo +nightly fuzz list)
for target in $targets; do
  echo "fuzz-smoke: $target"
  cargo +nightly fuzz run "$target" -- -max_total_time="${SECONDS_EACH:-10}" -verbosity=0 </dev/null
done
