#!/bin/sh
# A nightly backup as many are: all disks at once, each with an rsync of its own.
#
#   backup.sh DESTINATION [OPTION...]     copies disks/*.img; options are for rsync
set -eu
destination=$1
shift
for disk in disks/*.img; do
  rsync --whole-file --sparse "$@" "$disk" "$destination" &
done
wait
