#!/usr/bin/env bash
# tests/support/store_python.sh
#
# Prints the path of a Python that has what stores in other processes need: pycapnp, Mooncake and NIXL. Makes its environment, build/store_python,
# if there is none.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/store_python
if [[ ! -e $folder/made ]]; then
  echo "Installing pycapnp, Mooncake and NIXL into $folder" >&2
  rm -rf "$folder"
  python3 -m venv "$folder" >&2
  "$folder/bin/pip" install --quiet --no-compile --no-deps \
    pycapnp==2.2.4 numpy==2.4.6 mooncake-transfer-engine-non-cuda==0.3.13.post1 nixl==1.5.1 nixl-cu13==1.5.1 >&2
  touch "$folder/made"
fi
echo "$folder/bin/python"
