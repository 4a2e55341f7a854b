#!/usr/bin/env bash
# clients/python/tests/run.sh [PYTEST_ARGUMENTS...]
#
# Runs the tests of the Python package against the library and the programs that HICACHE_LIBRARY, HICACHE_TREE_LIBRARY and HICACHE_BIN name, with the first
# Python that has pytest: python3, or the system's. 77 if there is none (launch/install-packages.sh python3-pytest python3-numpy).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH}
for python in ${HICACHE_PYTHON:-python3 /usr/bin/python3}; do
  if "$python" -c 'import pytest' 2>/dev/null; then
    cd "$here"
    exec "$python" -X dev -m pytest -q -p no:cacheprovider "$@" .
  fi
done
echo "skipped: there is no Python with pytest"
exit 77
