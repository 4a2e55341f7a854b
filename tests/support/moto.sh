#!/usr/bin/env bash
# tests/support/moto.sh
#
# Prints the path of a moto_server, the S3 server of the tests, and installs it into build/moto if there is none.
set -euo pipefail

if command -v moto_server; then
  exit
fi
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/moto
if [[ ! -x $folder/bin/moto_server ]]; then
  echo "Installing moto into $folder" >&2
  python3 -m venv "$folder" >&2
  "$folder/bin/pip" install --quiet --no-compile 'moto[server]==5.2.1' >&2
fi
echo "$folder/bin/moto_server"
