#!/usr/bin/env bash
# Boots a kernel of tests/hosts/kernels.sh with tests/hosts/kernel-init, which tries out Bonsai, and becomes its hypervisor.
#
#   tests/hosts/boot-kernel.sh KERNEL PROGRAMS FOLDER WORD...
#
# KERNEL is a folder of one release, PROGRAMS one with `bonsai`, its libraries, and the programs that are tried. FOLDER gets what is made for this and
# the `console`. The WORDs are put on the kernel's command line. QEMU emulates the processor, so KVM is not needed. What cannot be is said in one line,
# with exit code 77.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernel=$1 programs=$2 folder=$3
shift 3

missing() {
  echo "$1"
  exit 77
}

busybox=$(command -v busybox) || missing "busybox is not installed (busybox-static)"
if ldd "$busybox" >/dev/null 2>&1; then
  missing "busybox needs libraries that a guest has not (busybox-static)"
fi
for program in qemu-system-x86_64 ip strip; do
  command -v "$program" >/dev/null || missing "$program is not installed (make test-kernels)"
done
[ -r "$kernel/release" ] || missing "there is no kernel in $kernel (make test-kernels)"

root=$folder/root
release=$(cat "$kernel/release")
mkdir -p "$root"/{bin,dev,etc,mnt,proc,run,sbin,sys,tmp,usr/bin,usr/sbin,bonsai,lib/modules}
cp "$busybox" "$root/bin/busybox"
"$busybox" --install -s "$root/bin"
find "$root/bin" -type l -exec ln -sf busybox {} \;
# Two that have to be dynamic, or do more than busybox's.
rm -f "$root/bin/ip" "$root/bin/true"
cp "$(command -v ip)" "$root/sbin/ip"
cp "$(type -P true)" "$root/bin/true"
ln -s /bin/busybox "$root/sbin/modprobe"
cp "$here/kernel-init" "$root/init"
chmod 755 "$root/init"
cp "$programs"/* "$root/bonsai/"
strip "$root/bonsai/bonsai"
# The libraries of all of these, and the loader.
for file in "$root"/bonsai/bonsai "$root"/bonsai/hosts-moves "$root/sbin/ip" "$root/bin/true"; do
  ldd "$file" 2>/dev/null || true
done | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u | while read -r library; do
  mkdir -p "$root${library%/*}"
  cp -L "$library" "$root$library"
done
cp -r "$kernel/modules" "$root/lib/modules/$release"
"$busybox" depmod -b "$root" "$release" 2>/dev/null
printf 'root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/tmp:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nguest:x:1000:\n' >"$root/etc/group"
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$folder/initramfs"
rm -r "$root"
truncate -s 64M "$folder/disk"

# The caller may be killed: the guest does not go on for ever. Two processors, as waits are to meet.
exec timeout --signal=KILL 600 qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -m 768M -smp 2 -nodefaults -no-reboot -display none \
  -chardev "file,id=console,path=$folder/console" -serial chardev:console \
  -kernel "$kernel/vmlinuz" -initrd "$folder/initramfs" \
  -append "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable nokaslr mitigations=off cryptomgr.notests $*" \
  -drive "file=$folder/disk,format=raw,if=virtio,cache=none" </dev/null
