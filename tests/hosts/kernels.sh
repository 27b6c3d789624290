#!/usr/bin/env bash
# Fetches the kernels of Debian's releases, for tests/conformance/tests/it/kernels.rs: the newest one for clouds of each, some 20 to 60 MB. They
# are unpacked and not installed. What is there already stays. What cannot be had is said, and left out.
#
#   tests/hosts/kernels.sh FOLDER RELEASE...
set -euo pipefail
guests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../guests" && pwd)
folder=$1
shift

left_out() {
  echo "kernels.sh: $1" >&2
  exit 0
}

for program in mmdebstrap dpkg xz zstd; do
  command -v "$program" >/dev/null || left_out "$program is not installed (make deps-guests)"
done
[ "$(id -u)" = 0 ] || left_out "packages of other releases are fetched by root"
[ "$(uname -m)" = x86_64 ] || left_out "the kernels are for x86-64"

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for release; do
  if [ -r "$folder/$release/release" ]; then continue; fi
  lists=$folder/.lists packages=$folder/.packages new=$folder/.$release
  rm -rf "$lists" "$packages" "$new"
  mkdir "$packages"
  echo "kernels.sh: fetching the kernel of $release" >&2
  # Only the lists of packages are made, as nothing is needed of what the kernel's packages depend on. sid's may be old where the archive is a copy.
  if ! mmdebstrap --quiet --variant=custom --mode=root --architectures=amd64 --aptopt='Acquire::Check-Valid-Until "false"' \
    --extract-hook="APT_CONFIG=\"\$MMDEBSTRAP_APT_CONFIG\" '$guests/fetch-kernel.sh' '$packages'" \
    "$release" "$lists" >"$folder/$release.log" 2>&1 </dev/null; then
    echo "kernels.sh: $release: $(grep -m 1 '^E: ' "$folder/$release.log" || tail -n 1 "$folder/$release.log")" >&2
    rm -rf "$lists" "$packages"
    continue
  fi
  rm -rf "$lists"
  "$guests/unpack-kernel.sh" "$packages" "$new" failover net_failover veth ifb virtio_blk loop libcrc32c net/sched drivers/virtio
  mv "$new" "$folder/$release"
done
