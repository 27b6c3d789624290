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

# Runs a command whose output is shown and kept in a file. Not through a pipe: a process that a test left behind has
# it open, and a reader of the pipe would wait for that one's end.
shown() {
  local log=$1 code=0 runs viewer
  shift
  : >"$log"
  sleep infinity &
  runs=$!
  tail --pid="$runs" --sleep-interval=0.2 -n +1 -f "$log" &
  viewer=$!
  "$@" </dev/null >>"$log" 2>&1 || code=$?
  kill "$runs"
  # The viewer reads to the end of the file then.
  wait "$runs" "$viewer" 2>/dev/null || true
  return "$code"
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# The preload library builds with its own profile only; the tests load it from BONSAI_BIN_DIR.
shown "${results[0]}" "${CARGO:-cargo}" test "${flags[@]}" --workspace --exclude bonsai-preload --no-fail-fast "$@" ||
  results[1]=$?

# Suites that count for themselves: those of others, bare and under limits; the web page, in node
# and in a browser; requests that are made up from the description of the interface. Not beside
# the tests of the crates: these have real players in them, which lose what they have no time for.
suites=(transparency tests/transparency/quick.sh
  browser scripts/browser-tests.sh
  api-fuzz scripts/api-fuzz.sh)
if [ $# -gt 0 ] || [ ! -d tests ]; then suites=(); fi
for ((at = 0; at < ${#suites[@]}; at += 2)); do
  log=$target/${suites[at]}.log code=0
  shown "$log" "${suites[at + 1]}" || code=$?
  results+=("$log" "$code")
done

# Processes that tests have started and not ended. Each has the file of skips in its environment.
for about in /proc/[0-9]*; do
  pid=${about#/proc/}
  if grep -qzxF "BONSAI_SKIP_LOG=$BONSAI_SKIP_LOG" "$about/environ" 2>/dev/null &&
    [ "$(cut -d ' ' -f 4 "$about/stat" 2>/dev/null)" != "$$" ]; then
    echo "NOTE: process $pid was left behind by a test, and is ended: $(tr '\0' ' ' <"$about/cmdline" 2>/dev/null)"
    kill -KILL "$pid" 2>/dev/null || true
  fi
done

echo
scripts/count-tests.sh "${results[@]}" | tee "$target/test-summary.txt"
