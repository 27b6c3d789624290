#!/usr/bin/env bash
# Brings the kernel of the guests: Debian's cloud kernel, unpacked and not installed, so that nothing of
# how this machine boots changes. Where it cannot be had, that is said, and the guests are skipped.
#
#   tests/guests/kernel.sh FOLDER
set -euo pipefail
folder=$1
# Some are part of the kernel and no files, by its configuration.
modules="virtio_anchor virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net virtio_blk"

# Who has one from before guests had disks fetches it again.
if [ -r "$folder/vmlinuz" ] && [ -r "$folder/modules/virtio_blk.ko" ]; then exit 0; fi
if [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ]; then
  echo "kernel.sh: guests need Debian on amd64" >&2
  exit 0
fi
package=$(apt-cache depends linux-image-cloud-amd64 |
  sed -n 's/^ *Depends: \(linux-image-[0-9].*-cloud-amd64\)$/\1/p' | head -n 1)
if [ -z "$package" ]; then
  echo "kernel.sh: the lists of packages have no linux-image-cloud-amd64; apt-get update brings them" >&2
  exit 0
fi
part=$folder.part
rm -rf "$part"
mkdir -p "$part/all" "$part/modules"
echo "kernel.sh: fetching $package" >&2
if ! (cd "$part" && apt-get -qq -o Acquire::Retries=3 download "$package" >apt.log 2>&1 </dev/null); then
  echo "kernel.sh: could not fetch $package: $(tail -n 1 "$part/apt.log")" >&2
  exit 0
fi
dpkg -x "$part"/*.deb "$part/all"
mv "$part"/all/boot/vmlinuz-* "$part/vmlinuz"
for module in $modules; do
  file=$(find "$part/all" -name "$module.ko*" -print -quit)
  case $file in
    '') continue ;;
    *.xz) xz -d "$file" ;;
    *.zst) zstd -q --rm -d "$file" ;;
  esac
  mv "${file%.ko*}.ko" "$part/modules/"
done
mkdir -p "$folder"
rm -rf "$folder/vmlinuz" "$folder/modules"
mv "$part/modules" "$part/vmlinuz" "$folder/"
rm -rf "$part"
