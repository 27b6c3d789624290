#!/usr/bin/env bash
# Makes root file systems of Debian's releases with the programs that tests/conformance/tests/it/hosts.rs tries: some 150 MB each. Those that
# are there stay. One that cannot be had is said, and left out.
#
#   tests/hosts/roots.sh FOLDER RELEASE...
#
# Packages are unpacked and not set up: programs run, and services have no users.
set -euo pipefail
folder=$1
shift

left_out() {
  echo "roots.sh: $1" >&2
  exit 0
}

command -v mmdebstrap >/dev/null || left_out "mmdebstrap is not installed (make deps-guests)"
[ "$(id -u)" = 0 ] || left_out "root file systems are made by root"

packages=bash,bzip2,coreutils,cpio,curl,dash,diffutils,file,findutils,gawk,grep,gzip,musl,openssl,perl,procps,python3,rsync,sed,sqlite3,tar,xz-utils,zstd
mkdir -p "$folder"
for release; do
  if [ -d "$folder/$release" ]; then continue; fi
  new=$folder/.$release
  rm -rf "$new"
  # sid's index may be old where the archive is a copy.
  if ! mmdebstrap --quiet --variant=extract --architectures=amd64 "--include=$packages" \
    --aptopt='Acquire::Check-Valid-Until "false"' "$release" "$new" >"$folder/$release.log" 2>&1; then
    echo "roots.sh: $release: $(tail -n 1 "$folder/$release.log")" >&2
    rm -rf "$new"
    continue
  fi
  rm -rf "$new/usr/share/doc" "$new/usr/share/locale" "$new/usr/share/man" "$new/var/cache/apt" "$new/var/lib/apt/lists"
  # Set up by the packages' own scripts elsewhere.
  [ -e "$new/bin/sh" ] || ln -s dash "$new/bin/sh"
  [ -e "$new/usr/bin/awk" ] || ln -s gawk "$new/usr/bin/awk"
  [ -e "$new/etc/passwd" ] || echo 'root:x:0:0:root:/root:/bin/sh' >"$new/etc/passwd"
  [ -e "$new/etc/group" ] || echo 'root:x:0:' >"$new/etc/group"
  mkdir -p "$new/mnt/bonsai" "$new/mnt/work" "$new/run"
  mv "$new" "$folder/$release"
done
