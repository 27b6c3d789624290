#!/usr/bin/env bash
# Takes the kernel and some of its modules out of Debian's packages, which are not installed: nothing of how this machine boots changes.
#
#   tests/guests/unpack-kernel.sh PACKAGES FOLDER MODULE...
#
# PACKAGES is the folder with them, which goes. FOLDER gets `vmlinuz`, `release` (what `uname -r` says) and `modules`, with their places below
# the kernel's folder. A MODULE is the name of one, or a folder with all in it, such as net/sched. Some are part of the kernel and no files.
set -euo pipefail
packages=$1 folder=$2
shift 2

for package in "$packages"/*.deb; do
  dpkg -x "$package" "$packages"
done
for modules in "$packages"/lib/modules/* "$packages"/usr/lib/modules/*; do
  if [ -d "$modules" ]; then break; fi
done
release=${modules##*/}
mkdir -p "$folder/modules"
for kernel in "$packages/boot/vmlinuz-$release" "$modules/vmlinuz"; do
  if [ -r "$kernel" ]; then mv "$kernel" "$folder/vmlinuz"; fi
done
for name; do
  find "$modules" \( -name "$name.ko*" -o -path "$modules/kernel/$name/*.ko*" \) -print
done | sort -u | while read -r file; do
  case $file in
    *.xz) xz -d "$file" ;;
    *.zst) zstd -q --rm -d "$file" ;;
  esac
  file=${file%.ko*}.ko
  into=$folder/modules${file#"$modules"}
  mkdir -p "${into%/*}"
  mv "$file" "$into"
done
cp "$modules"/modules.builtin "$modules/modules.order" "$folder/modules/"
echo "$release" >"$folder/release"
rm -rf "$packages"
