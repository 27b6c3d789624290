#!/usr/bin/env bash
# A client with 16 threads downloads under a limit, again and again: none may crash, and
# every byte must arrive. The server runs bare, on the loopback interface.
#
#   tests/transparency/threads16.sh [RUNS]      RUNS: 1000 when nothing is said
#
# Each run is a service of its own. Stops after 170 s. The last line is
# N passed, N failed, N skipped, which counts runs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/transparency/find.sh
. "$here/find.sh"

runs=${1:-1000}
limits=(--limit recv=10MB/s --limit read=10MB/s)
# 16 threads, 256 KiB in all: 13 ms under each limit, beyond the burst.
bytes=16384

if ! command -v gcc >/dev/null; then
  echo "SKIP: threads16: gcc is not installed"
  echo "0 passed, 0 failed, $runs skipped"
  exit 0
fi
work=$(mktemp -d)
server=
cleanup() {
  exec 9>&- || true
  [ -z "$server" ] || wait "$server" || true
  rm -rf "$work"
}
trap cleanup EXIT
gcc -O1 -Wall -Wextra -pthread -o "$work/threads16" "$here/threads16.c"
# The server ends with its standard input, however this script ends.
mkfifo "$work/life"
"$work/threads16" serve "$work/port" <"$work/life" &
server=$!
exec 9>"$work/life"
for _ in $(seq 100); do
  [ ! -s "$work/port" ] || break
  sleep 0.05
done
port=$(cat "$work/port")

export BONSAI_RUNTIME_DIR=$work/runtime
mkdir -m 700 "$BONSAI_RUNTIME_DIR"
passed=0 failed=0 waited=0
while [ $((passed + failed)) -lt "$runs" ] && [ "$SECONDS" -lt 170 ]; do
  code=0
  timeout 30 "$bonsai" run -v "${limits[@]}" -- "$work/threads16" fetch "$port" "$bytes" \
    2>"$work/said" 9>&- || code=$?
  if [ "$code" -eq 0 ]; then
    passed=$((passed + 1))
    # A run without a wait would prove nothing.
    if ! grep -q ' 0 waits' "$work/said"; then waited=$((waited + 1)); fi
  else
    failed=$((failed + 1))
    echo "threads16: run $((passed + failed)) ended with $code:"
    cat "$work/said"
  fi
done
skipped=$((runs - passed - failed))
[ "$skipped" -eq 0 ] || echo "SKIP: threads16: $skipped runs, for the time was over"
echo "threads16: $((passed + failed)) runs of 16 threads in $SECONDS s, $waited of them waited"
if [ "$waited" -eq 0 ]; then
  echo "threads16: no run waited for a limit"
  failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
