#!/usr/bin/env bash
# Boots a Debian system from a disk that somebody serves, and becomes its hypervisor. What it does there is
# tests/guests/work; its disk is made by tests/guests/images.sh.
#
#   tests/guests/boot-disk.sh NAME FOLDER DISK WORD...
#
# DISK is what QEMU opens, a file or nbd+unix:///web?socket=/run/disks.sock. FOLDER gets the console. The
# WORDs are put on the kernel's command line. QEMU emulates the processor, so KVM is not needed. The host
# caches nothing for QEMU: what is not in the guest's memory is asked of the server. What cannot be is
# said in one line, with exit code 77.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernel=${BONSAI_GUEST_KERNEL:-$(cd "$here/../.." && pwd)/target/guests}

missing() {
  echo "$1"
  exit 77
}

name=$1 folder=$2 disk=$3
shift 3
busybox=$(command -v busybox) || missing "busybox is not installed (busybox-static)"
if ldd "$busybox" >/dev/null 2>&1; then
  missing "busybox needs libraries that a guest has not (busybox-static)"
fi
command -v qemu-system-x86_64 >/dev/null || missing "qemu-system-x86_64 is not installed (make test-guests)"
[ -r "$kernel/modules/virtio_blk.ko" ] || missing "there is no kernel for a guest in $kernel (make test-guests)"

root=$folder/root
mkdir -p "$root"/{bin,dev,disk,modules,proc}
cp "$busybox" "$root/bin/busybox"
cp "$here/disk-init" "$root/init"
cp "$here/work" "$root/work"
chmod 755 "$root/init" "$root/work"
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
  if [ -r "$kernel/modules/$module.ko" ]; then cp "$kernel/modules/$module.ko" "$root/modules/"; fi
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$folder/initramfs"
rm -r "$root"

# Whoever started it may be killed: it does not go on for ever.
exec timeout --signal=KILL 1800 qemu-system-x86_64 -name "guest=$name" -machine q35 -accel tcg -m 160M -smp 1 -nodefaults -no-reboot -display none \
  -chardev "file,id=console,path=$folder/console" -serial chardev:console \
  -kernel "$kernel/vmlinuz" -initrd "$folder/initramfs" \
  -append "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable nokaslr mitigations=off lsm= cryptomgr.notests $*" \
  -drive "file=$disk,format=raw,if=virtio,cache=none,discard=unmap" </dev/null
