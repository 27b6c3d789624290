#!/usr/bin/env bash
# Checks the shell scripts of the repository with shellcheck.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v shellcheck >/dev/null; then
  echo "SKIP: lint-shell: shellcheck is not installed; apt-get install shellcheck adds it"
  exit 0
fi
shellcheck --external-sources scripts/*.sh tests/transparency/*.sh tests/guests/*.sh tests/hosts/*.sh .ci/run
