#!/usr/bin/env bash
# Boots a guest and becomes its hypervisor: a real kernel, whose only program is tests/guests/init.
#
#   tests/guests/boot.sh qemu|uml NAME FOLDER TAP WORD...
#
# FOLDER gets its console and, of QEMU, the socket `qmp`; TAP is there already; the WORDs are put on
# the kernel's command line. QEMU emulates the processor, so KVM is not needed. What cannot be is
# said in one line, with exit code 77.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernel=${BONSAI_GUEST_KERNEL:-$(cd "$here/../.." && pwd)/target/guests}

missing() {
  echo "$1"
  exit 77
}

hypervisor=$1 name=$2 folder=$3 tap=$4
shift 4
busybox=$(command -v busybox) || missing "busybox is not installed (busybox-static)"
if ldd "$busybox" >/dev/null 2>&1; then
  missing "busybox needs libraries that a guest has not (busybox-static)"
fi
case $hypervisor in
  qemu)
    command -v qemu-system-x86_64 >/dev/null || missing "qemu-system-x86_64 is not installed (make test-guests)"
    [ -r "$kernel/vmlinuz" ] || missing "there is no kernel for a guest in $kernel (make test-guests)"
    ;;
  uml) command -v linux.uml >/dev/null || missing "User Mode Linux is not installed (user-mode-linux)" ;;
  *)
    echo "boot.sh: $hypervisor is no hypervisor: qemu and uml are" >&2
    exit 2
    ;;
esac

root=$folder/root
mkdir -p "$root"/{bin,dev,modules,proc,sys}
cp "$busybox" "$root/bin/busybox"
cp "$here/init" "$root/init"
chmod 755 "$root/init"
if [ "$hypervisor" = qemu ]; then cp "$kernel"/modules/*.ko "$root/modules/"; fi
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$folder/initramfs"
rm -r "$root"

case $hypervisor in
  qemu)
    exec qemu-system-x86_64 -name "guest=$name" -machine q35 -accel tcg -m 128M -nodefaults -no-reboot -display none \
      -chardev "file,id=console,path=$folder/console" -serial chardev:console \
      -qmp "unix:$folder/qmp,server=on,wait=off" \
      -kernel "$kernel/vmlinuz" -initrd "$folder/initramfs" \
      -append "console=ttyS0 panic=-1 no_timer_check tsc=reliable nokaslr mitigations=off lsm= cryptomgr.notests $*" \
      -netdev "tap,id=net,ifname=$tap,script=no,downscript=no" \
      -device virtio-net-pci,netdev=net,romfile= </dev/null
    ;;
  uml)
    # Without gro=1 what is larger than the MTU is lost.
    exec linux.uml "umid=$name" "uml_dir=$folder" mem=128M "initrd=$folder/initramfs" \
      con=null con0=null,fd:1 quiet panic=-1 \
      "vec0:transport=tap,ifname=$tap,depth=128,gro=1" "$@" </dev/null >"$folder/console" 2>&1
    ;;
esac
