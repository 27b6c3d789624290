#!/usr/bin/env bash
# Adds up what the tests said.
#
#   scripts/count-tests.sh CARGO_LOG CARGO_EXIT SKIP_LOG [SUITE_LOG SUITE_EXIT]...
#
# CARGO_LOG is the output of `cargo test --no-fail-fast`, SKIP_LOG has one line for
# each test that could not run, SUITE_LOG ends with a line `N passed, N failed, N skipped`.
# Prints `SKIP: reason` for each skipped test, `FAIL: name` for each that failed (of a suite its line),
# and one such closing line over all; exits 1 when anything failed, or when a run ended badly without saying what failed.
set -euo pipefail

cargo_log=$1 cargo_exit=$2 skip_log=$3
shift 3

# A test program that dies prints no result: cargo lists it among the failed targets.
read -r passed failed ignored < <(awk '
  /^test result: / {
    for (i = 1; i < NF; i++) {
      if ($(i + 1) == "passed;") passed += $i
      if ($(i + 1) == "failed;") failed += $i
      if ($(i + 1) == "ignored;") ignored += $i
    }
    if ($3 == "FAILED.") told++
  }
  /^    `.*`$/ { targets++ }
  END {
    if (targets > told) failed += targets - told
    print passed + 0, failed + 0, ignored + 0
  }' "$cargo_log")
if [ "$cargo_exit" -ne 0 ] && [ "$failed" -eq 0 ]; then
  failed=1
fi

# The test harness counts a test that skipped itself as passed.
skipped=$(grep -c . "$skip_log" || true)
passed=$((passed > skipped ? passed - skipped : 0))
skipped=$((skipped + ignored))

sed -n -e 's/^SKIP: //' -e '/./s/^/SKIP: /p' "$skip_log"
sed -n -E 's/^test (.*) \.\.\. ignored,? ?/SKIP: \1: /p' "$cargo_log"
# With the first lines of what a failed test said, which stand before the list of names.
awk '
  /^---- .* stdout ----$/ { name = $2; said = 0; next }
  /^failures:$/ { name = ""; list++; next }
  /^test result: / { name = ""; list = 0 }
  name != "" && NF && said < 6 { text[name] = text[name] "  " $0 "\n"; said++ }
  list && /^    [^ ]+$/ { printf "FAIL: %s\n%s", $1, text[$1]; delete text[$1] }' "$cargo_log"
awk '/^    `-.*`$/ { sub(/^ +/, "FAIL: "); print }' "$cargo_log"

while [ $# -gt 0 ]; do
  suite_log=$1 suite_exit=$2
  shift 2
  grep '^SKIP: ' "$suite_log" || true
  # With the first lines of what a failed test of the page said, too.
  awk '
    /^browser / || /^[0-9]+ passed, / { more = 0 }
    /^(browser|api) not ok|, DIFFERENT$/ { print "FAIL: " $0; more = /^browser/ ? 12 : 0; next }
    more-- > 0' "$suite_log"
  closing=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$suite_log" | tail -n 1 || true)
  read -r suite_passed _ suite_failed _ suite_skipped _ <<<"${closing:-0 passed, 0 failed, 0 skipped}"
  if [ "$suite_failed" -eq 0 ] && { [ "$suite_exit" -ne 0 ] || [ -z "$closing" ]; }; then
    suite_failed=1
  fi
  passed=$((passed + suite_passed))
  failed=$((failed + suite_failed))
  skipped=$((skipped + suite_skipped))
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
