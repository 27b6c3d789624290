#!/usr/bin/env bash
# Sees to it that the Debian packages of the given kinds are installed.
#
#   scripts/deps.sh [--optional] [--packages] KIND...      KIND: build, test, demo, bench, transparency, guests
#
# The packages stand in scripts/packages-KIND.txt, one a line; `a | b` is satisfied
# by either, `a` is installed when neither is there. Root installs what is missing;
# anyone else is told what to install. With --optional a missing package is reported
# and no failure. When nothing is missing, nothing is asked of the network. With kind build,
# cargo has to be there as well, unless --packages is given.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

failure=1 cargo=yes
while :; do
  case ${1-} in
    --optional) failure=0 ;;
    --packages) cargo=no ;;
    *) break ;;
  esac
  shift
done

say() { printf 'deps: %s\n' "$*" >&2; }

# Packages first: sudo's PATH has no cargo of its user, and needs none to install them.
require_cargo() {
  if [ "$cargo" = no ] || [[ " $* " != *" build "* ]] || command -v "${CARGO:-cargo}" >/dev/null; then return 0; fi
  if [ -n "${SUDO_USER-}" ]; then
    say "cargo is not on root's PATH: build as $SUDO_USER, without sudo"
  else
    say "cargo is not on PATH; install Rust with rustup, see https://rustup.rs, and open a new shell"
  fi
  exit 1
}

if ! command -v dpkg-query >/dev/null; then
  say "this is no Debian system: install what scripts/packages-*.txt names by other means"
  require_cargo "$@"
  exit 0
fi

installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
for kind in "$@"; do
  list=$here/packages-$kind.txt
  [ -r "$list" ] || { say "no list $list; the kinds are build, test, demo, bench, transparency and guests"; exit 2; }
  while read -r line; do
    line=${line%%#*}
    read -ra choices <<<"${line//|/ }"
    found=no
    for package in "${choices[@]}"; do
      if installed "$package"; then found=yes; fi
    done
    if [ "${#choices[@]}" -gt 0 ] && [ "$found" = no ] && [[ " ${missing[*]-} " != *" ${choices[0]} "* ]]; then
      missing+=("${choices[0]}")
    fi
  done <"$list"
done
if [ "${#missing[@]}" -eq 0 ]; then
  require_cargo "$@"
  exit 0
fi

if [ "$(id -u)" != 0 ]; then
  say "not installed: ${missing[*]}"
  say "install them with: sudo apt-get install --no-install-recommends ${missing[*]}"
  require_cargo "$@"
  exit "$failure"
fi

say "installing ${missing[*]}"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
own_policy=no
cleanup() {
  rm -f "$log"
  if [ "$own_policy" = yes ]; then rm -f "$policy"; fi
}
trap cleanup EXIT
# A server that a test needs must not start as a service of this machine.
if [ ! -e "$policy" ]; then
  own_policy=yes
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1 </dev/null; }
# Without a network the lists may still know the packages.
apt_get update || true
if ! apt_get install --yes --no-install-recommends "${missing[@]}"; then
  cat "$log" >&2
  say "could not install: ${missing[*]}"
  exit "$failure"
fi
require_cargo "$@"
