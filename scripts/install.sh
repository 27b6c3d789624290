#!/usr/bin/env bash
# Installs what `make build` has built, or removes it again.
#
#   scripts/install.sh BUILT PREFIX
#   scripts/install.sh --remove PREFIX
#
# Nothing is built here, so that root needs no compiler for `make install`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -ne 2 ] || [ -z "$2" ]; then
  echo "usage: scripts/install.sh BUILT PREFIX | --remove PREFIX" >&2
  exit 2
fi
built=$1 prefix=$2
if [ "$built" != --remove ] && [ ! -x "$built/bonsai" ]; then
  echo "install: $built/bonsai is not there; run make build first" >&2
  exit 1
fi

# put MODE SOURCE DESTINATION
put() {
  if [ "$built" = --remove ]; then
    rm -f "$prefix/$3"
  else
    install -D -m "$1" "$2" "$prefix/$3"
  fi
}

put 755 "$built/bonsai" bin/bonsai
put 644 "$built/libbonsai_preload.so" lib/bonsai/libbonsai_preload.so
put 644 "$built/libbonsai_engine.so" lib/bonsai/libbonsai_engine.so
put 644 "$built/libbonsai_extension.so" lib/bonsai/libbonsai_extension.so
for page in man/*.1; do
  put 644 "$page" "share/man/man1/${page##*/}"
done
put 644 completions/bash/bonsai.bash share/bash-completion/completions/bonsai
put 644 completions/zsh/_bonsai share/zsh/site-functions/_bonsai
put 644 completions/fish/bonsai.fish share/fish/vendor_completions.d/bonsai.fish
for licence in LICENSE-APACHE LICENSE-MIT; do
  put 644 "$licence" "share/doc/bonsai/$licence"
done

if [ "$built" = --remove ]; then
  for folder in lib/bonsai share/doc/bonsai; do
    rmdir "$prefix/$folder" 2>/dev/null || true
  done
fi
