#!/usr/bin/env bash
# Fetches the C libraries of Debian's releases, for the tests that run programs with each of them: some 10 MB. What is
# there already stays. What cannot be had is said, and left out.
#
#   tests/hosts/libcs.sh [--frames] FOLDER [RELEASE...]
#
# FOLDER/RELEASE has the loader and the libraries of glibc, FOLDER/RELEASE-musl those of musl. Programs that are built
# here run with the library of this machine's release and with newer ones. With --frames, FOLDER/musl-VERSION-frames has each release's
# musl, built here from its source with frame pointers and marks of control-flow enforcement, as distributions other than Debian build
# their libraries: a minute each.
set -euo pipefail
frames=
if [ "${1-}" = --frames ]; then
  frames=yes
  shift
fi
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

[ -n "$frames" ] || exit 0
command -v gcc >/dev/null || left_out "no compiler for musl"

# Fetches and builds the musl of a release in the folder $2.
build_musl() {
  local release=$1 into=$2 archive options
  # The archive that this machine's packages are from.
  # shellcheck disable=SC2016 # apt's own variables.
  archive=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1)
  mkdir -p "$into/lists/partial" "$into/cache/archives/partial"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$archive" "$release" >"$into/sources.list"
  options=(-o "Dir::Etc::sourcelist=$into/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::Lists=$into/lists"
    -o "Dir::Cache=$into/cache" -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
  # Not `set -e`: the caller asks how it ended.
  apt-get "${options[@]}" update && cd "$into" && apt-get "${options[@]}" source --download-only musl \
    && tar -xf musl_*.orig.tar.[gx]z && cd musl-*/ \
    && CFLAGS="-O2 -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -fcf-protection=full" ./configure && make -s lib/libc.so
}

folder=$(cd "$folder" && pwd)
for release in "${releases[@]}"; do
  # The release's own library tells its version.
  version=$(strings "$folder/$release-musl/ld-musl-x86_64.so.1" 2>/dev/null | grep -m 1 -E '^1\.[0-9]+\.[0-9]+$' || true)
  if [ -n "$version" ] && [ -d "$folder/musl-$version-frames" ]; then continue; fi
  new=$folder/.build
  rm -rf "$new"
  mkdir "$new"
  if ! (build_musl "$release" "$new") >"$folder/$release-frames.log" 2>&1; then
    echo "libcs.sh: musl of $release: $(tail -n 1 "$folder/$release-frames.log")" >&2
    continue
  fi
  version=$(cat "$new"/musl-*/VERSION)
  mkdir -p "$folder/.musl"
  cp "$new"/musl-*/lib/libc.so "$folder/.musl/ld-musl-x86_64.so.1"
  mv "$folder/.musl" "$folder/musl-$version-frames"
done
rm -rf "$folder/.build"
