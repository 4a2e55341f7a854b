#!/usr/bin/env bash
# install_test.sh BUILD_FOLDER: installs the build and uses it from a project outside, as find_package(hicache) promises.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d -t hicache-install-XXXXXX)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/prefix" >"$work/install.log"
"$work/prefix/bin/hicache-index" --version
ls "$work/prefix/lib/systemd/system/hicache-node.service" "$work/prefix/lib/systemd/system/hicache-node.socket"
cmake -G Ninja -S "$here/consumer" -B "$work/build" -D CMAKE_PREFIX_PATH="$work/prefix" -D CMAKE_BUILD_TYPE=Release
cmake --build "$work/build"
"$work/build/consumer"
