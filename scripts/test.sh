#!/usr/bin/env bash
# Runs every test. Arguments go to `cargo test`. The last line is
#
#   N passed, N failed, N skipped
#
# and stands in TARGET/test-summary.txt, too. A test that cannot run here appends one
# line with its name and the reason to the file $BONSAI_SKIP_LOG, and returns.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
export CARGO_TARGET_DIR=$target
export BONSAI_BIN_DIR=${BONSAI_BIN_DIR:-$target/bonsai}
export BONSAI_SKIP_LOG=$target/skips.log
# Most tests wait most of the time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}
rm -f "$target/test-summary.txt"

: >"$BONSAI_SKIP_LOG"
results=("$target/tests.log" 0 "$BONSAI_SKIP_LOG")
read -ra flags <<<"${CARGO_FLAGS-}"

# The preload library builds with its own profile only; the tests load it from BONSAI_BIN_DIR.
"${CARGO:-cargo}" test "${flags[@]}" --workspace --exclude bonsai-preload --no-fail-fast "$@" \
  </dev/null 2>&1 | tee "${results[0]}" || results[1]=$?

# Suites that count for themselves: those of others, bare and under limits; the web page, in node
# and in a browser; requests that are made up from the description of the interface. Not beside
# the tests of the crates: these have real players in them, which lose what they have no time for.
suites=(transparency tests/transparency/quick.sh
  browser scripts/browser-tests.sh
  api-fuzz scripts/api-fuzz.sh)
if [ $# -gt 0 ] || [ ! -d tests ]; then suites=(); fi
for ((at = 0; at < ${#suites[@]}; at += 2)); do
  log=$target/${suites[at]}.log code=0
  "${suites[at + 1]}" </dev/null 2>&1 | tee "$log" || code=$?
  results+=("$log" "$code")
done

echo
scripts/count-tests.sh "${results[@]}" | tee "$target/test-summary.txt"
