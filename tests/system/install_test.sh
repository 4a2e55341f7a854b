#!/usr/bin/env bash
# install_test.sh BUILD_FOLDER: installs the build and uses it from a project outside, as find_package(hicache) promises.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d -t hicache-install-XXXXXX)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/prefix" >"$work/install.log"
"$work/prefix/bin/hicache-index" --version
"$work/prefix/bin/hicache-router" --version
ls "$work/prefix/lib/systemd/system/hicache-node.service" "$work/prefix/lib/systemd/system/hicache-node.socket"
cmake -G Ninja -S "$here/consumer" -B "$work/build" -D CMAKE_PREFIX_PATH="$work/prefix" -D CMAKE_BUILD_TYPE=Release
cmake --build "$work/build"
"$work/build/consumer"
# And a store alone, which links neither MPI nor UCX nor CUDA.
cmake -G Ninja -S "$here/store_consumer" -B "$work/store_build" -D CMAKE_PREFIX_PATH="$work/prefix" -D CMAKE_BUILD_TYPE=Release
cmake --build "$work/store_build"
"$work/store_build/store_consumer" "$work/store"
if ldd "$work/store_build/store_consumer" | grep -E 'libmpi|libuc[pst]|libcud|libcaf'; then
  echo "a store links more than it needs"
  exit 1
fi
# And the library for other languages, which needs none of hicache's other packages to build with.
cmake -G Ninja -S "$here/c_consumer" -B "$work/c_build" -D CMAKE_PREFIX_PATH="$work/prefix" -D CMAKE_BUILD_TYPE=Release
cmake --build "$work/c_build"
"$work/c_build/c_consumer"
"$work/c_build/c_tree_consumer"
package=$(find "$work/prefix" -name hicache.pc)
read -ra flags <<<"$(PKG_CONFIG_PATH=$(dirname "$package") pkg-config --cflags --libs hicache)"
cc "$here/c_consumer/main.c" "${flags[@]}" -o "$work/by_pkg_config"
LD_LIBRARY_PATH=$(dirname "$package")/.. "$work/by_pkg_config"
