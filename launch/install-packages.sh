#!/usr/bin/env bash
# launch/install-packages.sh [EXTRA_PACKAGE...]
#
# Installs the build and run-time dependencies of hicache on Debian 12 and systems with the same packages (CAF 0.17, CMake 3.23).
# Lists missing packages before it installs them; does nothing if none is missing.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config python3 procps
  libcaf-dev libucx-dev libopenmpi-dev openmpi-bin libcapnp-dev capnproto
  libspdlog-dev libfmt-dev libssl-dev openssl libxxhash-dev libabsl-dev libexpected-dev
  nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libyaml-cpp-dev libcpp-httplib-dev prometheus-cpp-dev
  libzmq3-dev cppzmq-dev libc-ares-dev libopenblas-dev libzstd-dev liblz4-dev libhiredis-dev liburing-dev libcurl4-openssl-dev libpugixml-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  "$@"
)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install-packages: this is no Debian or Ubuntu; install the equivalents of: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} = 0 ]; then
  exit 0
fi

echo "Installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-packages: there is no sudo here; as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
