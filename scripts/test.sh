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

# Suites of others, bare and under limits. They count for themselves.
if [ -x tests/transparency/quick.sh ] && [ $# -eq 0 ]; then
  results+=("$target/transparency.log" 0)
  tests/transparency/quick.sh </dev/null 2>&1 | tee "${results[3]}" || results[4]=$?
fi

# The web page, in node and in a browser. They count for themselves, too.
if [ -d tests/browser ] && [ $# -eq 0 ]; then
  at=${#results[@]}
  results+=("$target/browser.log" 0)
  scripts/browser-tests.sh </dev/null 2>&1 | tee "${results[at]}" || results[at + 1]=$?
fi

# Requests that are made up from the description of the interface.
if [ -d tests/api ] && [ $# -eq 0 ]; then
  at=${#results[@]}
  results+=("$target/api-fuzz.log" 0)
  scripts/api-fuzz.sh </dev/null 2>&1 | tee "${results[at]}" || results[at + 1]=$?
fi

echo
scripts/count-tests.sh "${results[@]}" | tee "$target/test-summary.txt"
