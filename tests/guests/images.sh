#!/usr/bin/env bash
# Makes disks of small Debian systems: raw images of ext4, as large as what is in them and 64 MiB. Four of
# them, of which three have the same release, and two the same service. A minute each, most of it unpacking;
# what is there already stays. What cannot be had is said, and left out.
#
#   tests/guests/images.sh FOLDER [NAME...]
set -euo pipefail
folder=$1
shift
names=("$@")
if [ ${#names[@]} -eq 0 ]; then names=(web dev mail next); fi

declare -A suites=([web]=bookworm [dev]=bookworm [mail]=bookworm [next]=trixie)
declare -A packages=(
  [web]=nginx-light
  [dev]="gcc,libc6-dev"
  [mail]="postfix,dovecot-imapd"
  [next]=nginx-light
)

left_out() {
  echo "images.sh: $1" >&2
  exit 0
}

for name in "${names[@]}"; do
  [ -n "${suites[$name]-}" ] || {
    echo "images.sh: $name is no disk: ${!suites[*]} are" >&2
    exit 2
  }
done
for program in mmdebstrap mke2fs; do
  command -v "$program" >/dev/null || left_out "$program is not installed (make deps-guests)"
done
[ "$(id -u)" = 0 ] || left_out "systems are made by root, so that their files are root's"

mkdir -p "$folder"
for name in "${names[@]}"; do
  disk=$folder/$name.raw
  if [ -r "$disk" ]; then continue; fi
  part=$folder/$name.part
  rm -rf --one-file-system "$part" "$part.raw"
  echo "images.sh: making $disk (${suites[$name]} with ${packages[$name]}), a minute" >&2
  if ! mmdebstrap --quiet --variant=minbase --architectures=amd64 --include="${packages[$name]}" \
    --aptopt='Acquire::Retries "3"' "${suites[$name]}" "$part" >"$folder/$name.log" 2>&1 </dev/null; then
    rm -rf --one-file-system "$part"
    left_out "$disk could not be made: $(grep -v '^$' "$folder/$name.log" | tail -n 1)"
  fi
  size=$(($(du -s --apparent-size --block-size=1M "$part" | cut -f 1) * 11 / 10 + 64))
  # Small ones would get blocks of 1 KiB, and no content of 4 KiB would be found twice.
  mke2fs -q -t ext4 -b 4096 -m 0 -L "$name" -d "$part" "$part.raw" "${size}M" >>"$folder/$name.log" 2>&1
  rm -rf --one-file-system "$part"
  mv "$part.raw" "$disk"
done
