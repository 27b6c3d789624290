#!/usr/bin/env bash
# Fetches the C libraries of Debian's releases, for the tests that run programs with each of them: some 10 MB. What is
# there already stays. What cannot be had is said, and left out.
#
#   tests/hosts/libcs.sh FOLDER [RELEASE...]
#
# FOLDER/RELEASE has the loader and the libraries of glibc, FOLDER/RELEASE-musl those of musl. Programs that are built
# here run with the library of this machine's release and with newer ones.
set -euo pipefail
folder=$1
shift
releases=("$@")
if [ ${#releases[@]} -eq 0 ]; then releases=(bookworm trixie sid); fi

left_out() {
  echo "libcs.sh: $1" >&2
  exit 0
}

command -v mmdebstrap >/dev/null || left_out "mmdebstrap is not installed (make deps-guests)"
[ "$(id -u)" = 0 ] || left_out "packages are unpacked by root"

mkdir -p "$folder"
for release in "${releases[@]}"; do
  if [ -d "$folder/$release" ] && [ -d "$folder/$release-musl" ]; then continue; fi
  new=$folder/.$release
  rm -rf "$new" "$folder/.libraries" "$folder/.musl"
  # sid's index may be old where the archive is a copy.
  if ! mmdebstrap --quiet --variant=extract --architectures=amd64 --include=libc6,musl \
    --aptopt='Acquire::Check-Valid-Until "false"' "$release" "$new" >"$folder/$release.log" 2>&1; then
    echo "libcs.sh: $release: $(tail -n 1 "$folder/$release.log")" >&2
    rm -rf "$new"
    continue
  fi
  # The loader's place depends on the release; before glibc 2.35 its name is a link.
  loader=$(find "$new" -name 'ld-linux-x86-64.so.2' -path '*x86_64-linux-gnu*' | head -n 1)
  if [ -z "$loader" ]; then
    echo "libcs.sh: $release: there is no loader in libc6" >&2
  elif [ ! -d "$folder/$release" ]; then
    mkdir "$folder/.libraries"
    cp -a "$(dirname "$loader")/." "$folder/.libraries"
    mv "$folder/.libraries" "$folder/$release"
  fi
  # musl's loader is the library.
  library=$(find "$new" -name libc.so -path '*x86_64-linux-musl*' | head -n 1)
  if [ -z "$library" ]; then
    echo "libcs.sh: $release: there is no libc.so in musl" >&2
  elif [ ! -d "$folder/$release-musl" ]; then
    mkdir "$folder/.musl"
    cp "$library" "$folder/.musl/ld-musl-x86_64.so.1"
    mv "$folder/.musl" "$folder/$release-musl"
  fi
  rm -rf "$new"
done
