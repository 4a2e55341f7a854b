#!/usr/bin/env bash
# tests/support/store_python.sh
#
# Prints the path of a Python that has what stores in other processes need: pycapnp, Mooncake, NIXL, LMCache and PyTorch. Makes its environment,
# build/store_python, if there is none from the same packages.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python3 "$root/tests/engines/environment.py" stores "$root/build/store_python" >&2
echo "$root/build/store_python/bin/python"
