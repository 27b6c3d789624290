# shellcheck shell=bash
# Read by the scripts here: where the built program is, and where to put what is made.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
bin=${BONSAI_BIN_DIR:-$target/bonsai}
store=$target/transparency
bonsai=$bin/bonsai
if [ ! -x "$bonsai" ] || [ ! -f "$bin/libbonsai_preload.so" ]; then
  echo "$bin has no bonsai with its library: make build puts them there" >&2
  exit 2
fi
mkdir -p "$store"
