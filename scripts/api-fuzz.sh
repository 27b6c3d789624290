#!/usr/bin/env bash
# Asks a daemon everything that its description (api/openapi.json) allows, and much that it does
# not, with schemathesis; each answer must be one that the description has. The last line is
# N passed, N failed, N skipped, counted in operations.
#
#   scripts/api-fuzz.sh [ARGUMENT...]        for `st run`, such as --include-path /v1/audit
#
# First over TCP with a token; then, if there are no arguments, over the Unix socket what is only
# answered there. At the end the daemon must still answer and decide.
# Schemathesis is installed into TARGET, as tests/api/requirements.txt names it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
bonsai=${BONSAI_BIN_DIR:-$target/bonsai}/bonsai
venv=$target/api-fuzz
here=$PWD

skip() {
  echo "SKIP: requests made up from the interface's description: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

python=$(command -v python3 || true)
[ -n "$python" ] || skip "python3 is not installed; apt-get install python3 python3-venv adds it"
[ -x "$bonsai" ] || skip "there is no $bonsai; make build makes it"
if ! cmp -s tests/api/requirements.txt "$venv/done"; then
  rm -rf "$venv"
  "$python" -m venv "$venv" >"$venv.install.log" 2>&1 \
    || skip "python3 makes no virtual environment; apt-get install python3-venv adds it"
  "$venv/bin/pip" install --disable-pip-version-check --no-input --quiet --only-binary :all: \
    --requirement tests/api/requirements.txt >"$venv.install.log" 2>&1 </dev/null \
    || skip "pip could not install schemathesis: $(tail -n 1 "$venv.install.log")"
  cp tests/api/requirements.txt "$venv/done"
fi

# What root asks of interfaces is done: to those of a network namespace of its own.
if [ "$(id -u)" = 0 ]; then
  if [ -z "${BONSAI_API_FUZZ_APART-}" ]; then
    BONSAI_API_FUZZ_APART=yes exec unshare --net bash scripts/api-fuzz.sh "$@"
  fi
  ip link set lo up || skip "there is no ip to set the loopback up; apt-get install iproute2 adds it"
fi

scratch=$(mktemp -d)
# Where the services are is a path of a socket, which is short.
export BONSAI_RUNTIME_DIR=$scratch/run BONSAI_STATE_DIR=$scratch/state
mkdir -m 700 "$BONSAI_RUNTIME_DIR"
pids=()
# shellcheck disable=SC2317  # It is what the trap does.
cleanup() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$scratch"
}
trap cleanup EXIT

cat >"$scratch/bonsai.toml" <<'TOML'
[capacity]
read = "20MB/s"
send = "100Mbit/s"
[classes.media.send]
min = "1Mbit/s"
[groups.night.read]
weight = 2
[services.vod.read]
min = "5MB/s"
[services.vod.qos]
loss = "1%"
[api]
requests = 100000
TOML

# Services that move something, and a daemon that sees them.
for name in vod backup; do
  "$bonsai" run --name "$name" -- dd if=/dev/zero of=/dev/null bs=16k 2>/dev/null &
  pids+=($!)
done
"$bonsai" daemon --config "$scratch/bonsai.toml" --listen 127.0.0.1:0 \
  >"$scratch/said" 2>"$scratch/daemon.log" &
daemon=$!
pids+=("$daemon")
for _ in {1..200}; do
  if [ -s "$scratch/said" ] && "$bonsai" stats vod >/dev/null 2>&1; then break; fi
  sleep 0.1
done
address=$(grep -oE '127\.0\.0\.1:[0-9]+' "$scratch/said")
token=$("$bonsai" token create fuzz --scope write)
# For schemathesis the Unix socket is a port.
mkfifo "$scratch/open"
"$python" tests/api/forward.py "$BONSAI_RUNTIME_DIR/daemon.sock" <"$scratch/open" >"$scratch/port" &
exec 3>"$scratch/open"
for _ in {1..100}; do if [ -s "$scratch/port" ]; then break; fi; sleep 0.1; done

# It writes beside itself.
cd "$scratch"
code=0
ask() {
  local name=$1
  shift
  timeout --foreground 240 "$venv/bin/st" --config-file "$here/tests/api/schemathesis.toml" run \
    "$here/api/openapi.json" --no-color --report junit --report-junit-path "$target/api-fuzz-$name.xml" \
    "$@" >"$target/api-fuzz-$name.log" 2>&1 </dev/null || code=$?
}
rm -f "$target"/api-fuzz-*.xml
ask tcp --url "http://$address" --header "Authorization: Bearer $token" "$@"
if [ $# -eq 0 ]; then
  ask socket --url "http://127.0.0.1:$(cat "$scratch/port")" --include-tag access
fi
exec 3>&-
cd "$here"
if ! kill -0 "$daemon"; then
  echo "the daemon has ended:"
  cat "$scratch/daemon.log"
fi
"$python" tests/api/told.py "$BONSAI_RUNTIME_DIR/daemon.sock" "$target"/api-fuzz-*.xml || code=1
if [ "$code" -ne 0 ]; then
  echo "api-fuzz: the logs are $target/api-fuzz-*.log" >&2
fi
exit "$code"
