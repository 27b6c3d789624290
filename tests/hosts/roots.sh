#!/usr/bin/env bash
# Makes root file systems of Debian's releases with the programs that tests/conformance/tests/it/hosts.rs tries: some 150 MB each, and with
# --more, which adds servers, runtimes and the programs of more-packages.txt, some 1.2 GB. Those that are there stay. One that cannot be had
# is said, and left out; so is a package that a release does not have.
#
#   tests/hosts/roots.sh [--more] FOLDER RELEASE...
#
# Packages are unpacked and not set up: programs run, and services have no users.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
packages=(bash bzip2 coreutils cpio curl dash diffutils file findutils gawk grep gzip musl openssl perl procps python3 rsync sed sqlite3 tar
  xz-utils zstd)
hook=true
if [ "${1-}" = --more ]; then
  shift
  # Without security updates: of those, copies of the archive may lack some.
  # shellcheck disable=SC2016 # mmdebstrap's shell has the folder.
  hook='sed -i /security/d "$1"/etc/apt/sources.list'
  mapfile -t -O "${#packages[@]}" packages < <(sed 's/#.*//' "$here/more-packages.txt" | tr -s ' \n' '\n' | sed '/^$/d')
fi
folder=$1
shift

left_out() {
  echo "roots.sh: $1" >&2
  exit 0
}

command -v mmdebstrap >/dev/null || left_out "mmdebstrap is not installed (make deps-guests)"
[ "$(id -u)" = 0 ] || left_out "root file systems are made by root"

# One release into a folder, with the packages named.
unpack() {
  local release=$1 into=$2 list
  shift 2
  list=$(IFS=,; echo "$*")
  rm -rf "$into"
  # sid's index may be old where the archive is a copy.
  mmdebstrap --verbose --variant=extract --architectures=amd64 "--include=$list" \
    --aptopt='Acquire::Check-Valid-Until "false"' "--setup-hook=$hook" "$release" "$into" >"$folder/$release.log" 2>&1
}

mkdir -p "$folder"
for release; do
  if [ -d "$folder/$release" ]; then continue; fi
  new=$folder/.$release
  if ! unpack "$release" "$new" "${packages[@]}"; then
    # apt names all packages that a release does not have at once.
    mapfile -t absent < <(sed -n "s/^E: Unable to locate package //p; s/^E: Package '\(.*\)' has no installation candidate.*/\1/p" "$folder/$release.log")
    rest=()
    for package in "${packages[@]}"; do
      if [[ " ${absent[*]} " != *" $package "* ]]; then rest+=("$package"); fi
    done
    if [ "${#absent[@]}" = 0 ] || ! unpack "$release" "$new" "${rest[@]}"; then
      echo "roots.sh: $release: $(tail -n 1 "$folder/$release.log")" >&2
      rm -rf "$new"
      continue
    fi
    echo "roots.sh: $release has no ${absent[*]}" >&2
  fi
  rm -rf "$new/usr/share/doc" "$new/usr/share/locale" "$new/usr/share/man" "$new/var/cache/apt" "$new/var/lib/apt/lists"
  # Set up by the packages' own scripts elsewhere.
  [ -e "$new/bin/sh" ] || ln -s dash "$new/bin/sh"
  [ -e "$new/usr/bin/awk" ] || ln -s gawk "$new/usr/bin/awk"
  [ -e "$new/etc/passwd" ] || printf '%s\n' root:x:0:0:root:/root:/bin/sh sshd:x:100:65534::/run/sshd:/usr/sbin/nologin \
    www-data:x:33:33::/var/www:/usr/sbin/nologin nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin >"$new/etc/passwd"
  [ -e "$new/etc/group" ] || printf '%s\n' root:x:0: www-data:x:33: nogroup:x:65534: >"$new/etc/group"
  for java in "$new"/usr/lib/jvm/*/bin/java; do
    if [ -e "$java" ] && [ ! -L "$new/usr/bin/java" ]; then ln -s "${java#"$new"}" "$new/usr/bin/java"; fi
  done
  mkdir -p "$new/mnt/bonsai" "$new/mnt/work" "$new/run"
  mv "$new" "$folder/$release"
done
