#!/usr/bin/env bash
# tests/run.sh [CTEST_ARGUMENTS...]
#
# Installs what is missing, builds, and runs the whole test suite. Arguments go to ctest: tests/run.sh -L unit.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# For tests alone, which start servers, skew clocks, and try the Python package.
"$root/launch/install-packages.sh" etcd-server dnsmasq-base faketime redis-server python3-pytest python3-numpy python3-venv
cd "$root"
if moto=$(tests/support/moto.sh); then
  export HICACHE_MOTO_SERVER=$moto
else
  echo "moto cannot be installed, so tests of S3 are skipped" >&2
fi
if python=$(tests/support/store_python.sh); then
  export HICACHE_STORE_PYTHON=$python
else
  echo "pycapnp, Mooncake, NIXL and LMCache cannot be installed, so tests of stores in other processes are skipped" >&2
fi
echo "Configuring and building build/release"
cmake --preset release
cmake --build --preset release -j "$(nproc)"
echo "Running the tests"
ctest --preset release -j "$(nproc)" --output-junit tests.xml "$@"
tests/skips.py build/release/tests.xml release
