#!/usr/bin/env bash
# Two Debian guests, a web server and a mail server, boot from `bonsai drive serve`, one after the other, and compare all
# files of their packages with their checksums. At the end `bonsai drive status` says what they share. A minute, and
# some more the first time, when the disks are made (as root).
#
#   scripts/demo-guests.sh     after `make build`; `make demo-guests` does both
#
# The disks are copies, and gone at the end, like the server and the guests, also after Ctrl-C.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
bin=${BONSAI_BIN_DIR:-$target/bonsai}
export BONSAI_GUEST_KERNEL=$target/guests

die() {
  printf 'demo-guests: %s\n' "$*" >&2
  exit 1
}

show() {
  printf '$ %s\n' "$*"
  "$@"
}

[ -x "$bin/bonsai" ] || die "$bin/bonsai is not there; run make build first"
PATH=$bin:$PATH
tests/guests/kernel.sh "$BONSAI_GUEST_KERNEL"
tests/guests/images.sh "$BONSAI_GUEST_KERNEL/disks" web mail
for disk in web mail; do
  [ -r "$BONSAI_GUEST_KERNEL/disks/$disk.raw" ] || die "there is no disk $disk for a guest"
done

folder=$(mktemp -d "$BONSAI_GUEST_KERNEL/demo.XXXXXX")
server=
guest=
# shellcheck disable=SC2317 # The trap calls it.
clean() {
  for pid in $guest $server; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir -m 700 "$folder/run"
export BONSAI_RUNTIME_DIR=$folder/run
for disk in web mail; do
  cp --sparse=always "$BONSAI_GUEST_KERNEL/disks/$disk.raw" "$folder/"
  # Nothing of it is in memory: as if the machine had just been started.
  sync "$folder/$disk.raw"
  dd if="$folder/$disk.raw" iflag=nocache count=0 status=none
done
root=$(pwd)
cd "$folder"

# shellcheck disable=SC2016 # As it would be typed.
printf '$ %s\n' 'bonsai drive serve web.raw mail.raw --group lab --scan --socket disks.sock &'
bonsai drive serve web.raw mail.raw --group lab --scan --socket disks.sock &
server=$!
for _ in $(seq 600); do
  if bonsai drive status | grep -q 'group lab'; then break; fi
  kill -0 "$server" 2>/dev/null || die "the server has ended"
  sleep 0.1
done
before=$(awk '/^read_bytes/ { print $2 }' "/proc/$server/io")

for disk in web mail; do
  mkdir "$disk"
  disk_uri="nbd+unix:///$disk?socket=disks.sock"
  printf '$ %s\n' "qemu-system-x86_64 -m 160M ... -drive file='$disk_uri',format=raw,if=virtio,cache=none"
  "$root/tests/guests/boot-disk.sh" "$disk" "$folder/$disk" "$disk_uri" work.write=4 &
  guest=$!
  wait "$guest" || die "the guest has failed: $(tail -n 3 "$disk/console")"
  guest=
  grep -a '^guest: ' "$disk/console" | tr -d '\r'
done
show bonsai drive status
after=$(awk '/^read_bytes/ { print $2 }' "/proc/$server/io")
echo "Read from the disk for both guests: $(((after - before) / 1000000)) MB; by the scan before: $((before / 1000000)) MB."
