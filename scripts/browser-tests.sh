#!/usr/bin/env bash
# Tests of the web page: its modules in node, and all of it in Debian's Chromium against the real
# daemon. The last line is N passed, N failed, N skipped.
#
#   scripts/browser-tests.sh [--tree] [--figures] [NAME...]
#
# NAME is a file of tests/browser/page without `.test.mjs`; without one, all are run. --figures
# takes the pictures of docs/figures instead. With --tree the browser gets the files in web/ instead
# of those in the program, which then need not be built anew for each change of them. What the tests need of npm is installed into TARGET.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
export BONSAI_BIN_DIR=${BONSAI_BIN_DIR:-$target/bonsai}
modules=$target/browser
log=$target/browser-tests.log
: >"$log"

figures=no
while [[ "${1-}" == --* ]]; do
  case $1 in
    --figures) figures=yes ;;
    --tree) export BONSAI_PAGE_FILES=$PWD/web ;;
    *)
      echo "browser-tests.sh: $1 is no option: --figures and --tree are" >&2
      exit 2
      ;;
  esac
  shift
done

skip() {
  echo "SKIP: $1: $2"
  skips=$((${skips:-0} + 1))
}

summary() {
  local passed failed skipped
  read -r passed failed skipped < <(awk '
    /^# pass / { pass += $3 } /^# (fail|cancelled) / { fail += $3 } /^# skipped / { skip += $3 }
    END { print pass + 0, fail + 0, skip + 0 }' "$log")
  # A file that could not even be read fails without a count.
  if [ "${broken:-0}" -gt 0 ] && [ "$failed" -eq 0 ]; then failed=$broken; fi
  echo "$passed passed, $failed failed, $((skipped + ${skips:-0})) skipped"
  [ "$failed" -eq 0 ]
}

node=$(command -v node || true)
version=0
if [ -n "$node" ]; then version=$("$node" -p 'process.versions.node.split(".")[0]'); fi
if [ "$version" -lt 20 ]; then
  skip "browser tests" "node 20 or later is not installed; apt-get install nodejs npm, or nodejs.org, adds it"
  summary
  exit
fi

run() {
  local code=0
  "$node" --test --test-reporter=tap "$@" </dev/null >"$log.one" 2>&1 || code=$?
  cat "$log.one" >>"$log"
  # One line for each test, and all about those that failed.
  awk '
    /^(not )?ok [0-9]+ - / { sub(/ [0-9]+ - /, " "); print "browser " $0 }
    /^not ok/ { told = 1; next } told && /^  \.\.\.$/ { told = 0 }
    told { print }' "$log.one"
  if [ "$code" -ne 0 ]; then broken=$((${broken:-0} + 1)); fi
  rm -f "$log.one"
}

if [ "$figures" = no ] && [ $# -eq 0 ]; then
  run tests/browser/unit/*.test.mjs
fi

chromium=$(command -v chromium || true)
why=
if [ -z "$chromium" ]; then
  why="chromium is not installed; apt-get install chromium adds it"
elif ! command -v npm >/dev/null; then
  why="npm is not installed; apt-get install npm adds it"
elif [ ! -x "$BONSAI_BIN_DIR/bonsai" ]; then
  why="there is no $BONSAI_BIN_DIR/bonsai; make build makes it"
elif ! cmp -s tests/browser/package-lock.json "$modules/done"; then
  mkdir -p "$modules"
  cp tests/browser/package.json tests/browser/package-lock.json tests/browser/.npmrc "$modules/"
  if (cd "$modules" && npm ci --ignore-scripts --no-audit --no-fund) >"$modules/npm.log" 2>&1 </dev/null; then
    cp "$modules/package-lock.json" "$modules/done"
  else
    why="npm could not install playwright-core and axe-core: $(tail -n 1 "$modules/npm.log")"
  fi
fi
if [ -n "$why" ]; then
  skip "tests of the page in a browser" "$why"
  summary
  exit
fi

export BONSAI_CHROMIUM=$chromium BONSAI_BROWSER_MODULES=$modules
if [ "$figures" = yes ]; then
  "$node" tests/browser/page/figures.mjs docs/figures
  if command -v pngquant >/dev/null; then
    pngquant --force --ext .png --skip-if-larger --speed 1 docs/figures/page-*.png || true
  fi
  exit
fi
files=()
for name in "$@"; do files+=("tests/browser/page/$name.test.mjs"); done
if [ $# -eq 0 ]; then files=(tests/browser/page/*.test.mjs); fi
# One after the other: each has a daemon and a browser of its own.
for file in "${files[@]}"; do run "$file"; done
summary
