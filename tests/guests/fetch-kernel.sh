#!/usr/bin/env bash
# Fetches the packages of Debian's newest kernel for clouds, by the lists of packages that apt has, into FOLDER. What cannot be is said.
#
#   tests/guests/fetch-kernel.sh FOLDER
set -euo pipefail
cd "$1"

package=$(apt-cache depends linux-image-cloud-amd64 |
  sed -n 's/^ *Depends: \(linux-image-[0-9].*-cloud-amd64\)$/\1/p' | head -n 1)
if [ -z "$package" ]; then
  echo "the lists of packages have no linux-image-cloud-amd64; apt-get update brings them" >&2
  exit 1
fi
# From Debian 14 on the kernel and its modules are packages of their own, of the same name.
parts=$(apt-cache depends "$package" |
  sed -n "s/^ *Depends: \(linux-[a-z]*-${package#linux-image-}\)$/\1/p")
# shellcheck disable=SC2086 # one package a word
apt-get -qq -o Acquire::Retries=3 download "$package" $parts </dev/null
