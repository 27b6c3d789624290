#!/usr/bin/env bash
# Runs the test suites of suites.toml bare and under Bonsai, and compares.
#
#   tests/transparency/run.sh [--suite NAME]... [--mode MODE]... [--quick] [--longest SECONDS] [MODULE]...
#
# Takes an hour or more in full. Packages from PyPI and sources from Debian are fetched
# into target/transparency/; what cannot be had is skipped, with its reason.
# results.json in that folder has every count. The last line is
# N passed, N failed, N skipped, which counts modules times modes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/transparency/find.sh
. "$here/find.sh"

python=/usr/bin/python3
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "SKIP: transparency: $python is not Python 3.11 or later"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
exec "$python" -B "$here/run.py" --bonsai "$bonsai" --store "$store" "$@"
