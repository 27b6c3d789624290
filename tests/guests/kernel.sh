#!/usr/bin/env bash
# Brings the kernel of the guests: Debian's cloud kernel, unpacked and not installed, so that nothing of
# how this machine boots changes. Where it cannot be had, that is said, and the guests are skipped.
#
#   tests/guests/kernel.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
# Some are part of the kernel and no files, by its configuration.
modules="virtio_anchor virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net virtio_blk"

# Who has one from before guests had disks fetches it again.
if [ -r "$folder/vmlinuz" ] && [ -r "$folder/modules/virtio_blk.ko" ]; then exit 0; fi
if [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ]; then
  echo "kernel.sh: guests need Debian on amd64" >&2
  exit 0
fi
part=$folder.part
rm -rf "$part"
mkdir -p "$part/packages"
echo "kernel.sh: fetching linux-image-cloud-amd64" >&2
if ! "$here/fetch-kernel.sh" "$part/packages" >"$part/apt.log" 2>&1; then
  echo "kernel.sh: could not fetch the kernel: $(tail -n 1 "$part/apt.log")" >&2
  exit 0
fi
# shellcheck disable=SC2086 # one module a word
"$here/unpack-kernel.sh" "$part/packages" "$part/kernel" $modules
mkdir -p "$folder"
rm -rf "$folder/vmlinuz" "$folder/modules"
mkdir "$folder/modules"
find "$part/kernel/modules" -name '*.ko' -exec mv -t "$folder/modules" {} +
mv "$part/kernel/vmlinuz" "$folder/"
rm -rf "$part"
