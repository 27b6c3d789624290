#!/usr/bin/env bash
# Fetches what programs are linked with that are to run on Debian 11 (glibc 2.31) and later: the C library of that release, some 5 MB. What
# is there already stays. Where it cannot be had, programs are linked with this machine's and run with that and later ones.
#
#   scripts/sysroot.sh FOLDER
set -euo pipefail
folder=$1
if [ -d "$folder" ]; then exit 0; fi

left_out() {
  local ours
  ours=$(getconf GNU_LIBC_VERSION 2>/dev/null || echo "this machine's C library")
  echo "sysroot.sh: $1: what is built runs with $ours and later" >&2
  exit 0
}

command -v mmdebstrap >/dev/null || left_out "mmdebstrap is not installed"
new=$folder.new
rm -rf "$new"
mkdir -p "$(dirname "$folder")"
log=$(mktemp)
trap 'rm -rf "$new" "$log"' EXIT
if ! mmdebstrap --quiet --variant=extract --architectures=amd64 --include=libc6-dev \
  --aptopt='Acquire::Check-Valid-Until "false"' bullseye "$new" >"$log" 2>&1; then
  left_out "$(tail -n 1 "$log")"
fi
# Absolute links lead out of the folder.
find "$new/usr/lib/x86_64-linux-gnu" "$new/lib/x86_64-linux-gnu" "$new/lib64" -type l -lname '/*' | while read -r link; do
  ln -sfnr "$new$(readlink "$link")" "$link"
done
# Of the other packages no program is needed.
find "$new" -mindepth 1 -maxdepth 1 ! -name usr ! -name lib ! -name lib64 -exec rm -rf {} +
find "$new/usr" -mindepth 1 -maxdepth 1 ! -name lib ! -name include -exec rm -rf {} +
mv "$new" "$folder"
