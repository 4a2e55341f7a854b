#!/usr/bin/env bash
# layering_test.sh BUILD_FOLDER COMPILER: a source that links a layer sees the headers of that layer and of those above it, and no others.
set -euo pipefail
layers=(api base messages rpc cache identity gpu transport backends stores actors runtime launch c_abi c_tree)
declare -A header=([api]=hicache/error.hpp [base]=base/check.hpp [messages]=messages/commands.hpp [rpc]=rpc/network.hpp [cache]=cache/copy_strips.hpp [identity]=identity/facts.hpp [gpu]=gpu/device.hpp
                   [transport]=transport/addresses.hpp [backends]=backends/file_backend.hpp [stores]=stores/open_stores.hpp
                 [actors]=actors/tree.hpp [runtime]=runtime/rank_config.hpp [launch]=launch/program.hpp [c_abi]=c_abi/client.hpp [c_tree]=c_tree/cache.hpp)
# What each layer's link line names, itself included: see docs/internals.md and the folders' CMakeLists.txt.
declare -A sees=([base]="api base" [messages]="api base messages" [rpc]="api base messages rpc" [cache]="api base messages cache"
                 [identity]="api base messages cache identity" [gpu]="api base messages cache gpu"
                 [transport]="api base messages transport" [backends]="api base messages rpc cache transport backends"
                 [stores]="api base messages rpc cache transport backends stores"
                 [actors]="api base messages rpc cache gpu transport backends actors"
                 [runtime]="api base messages rpc cache gpu transport backends stores actors runtime"
                 [launch]="api base messages rpc cache identity gpu transport backends stores actors runtime launch"
                 [c_abi]="api base messages rpc cache identity transport backends c_abi"
                 [c_tree]="api base messages rpc cache gpu transport backends stores actors runtime c_abi c_tree")
work=$(mktemp -d -t hicache-layering-XXXXXX)
trap 'rm -rf "$work"' EXIT
failures=0
for layer in "${layers[@]:1}"; do
  # The include directories that CMake gave the layer's own sources.
  mapfile -t includes < <(python3 - "$1/compile_commands.json" "/$layer/" <<'PY'
import json, re, shlex, sys
commands, folder = json.load(open(sys.argv[1])), sys.argv[2]
for entry in commands:
    if folder + entry["file"].split("/")[-1] == entry["file"][-len(folder + entry["file"].split("/")[-1]):] and "/tests/" not in entry["file"]:
        found = {f for f in re.findall(r"-I(\S*/layers/\S+)", entry["command"])}
        print("\n".join(sorted("-I" + f for f in found)))
PY
  )
  for other in "${layers[@]}"; do
    found=no
    for include in "${includes[@]}"; do
      if [ -n "$include" ] && [ -e "${include#-I}/${header[$other]}" ]; then
        found=yes
      fi
    done
    expected=no
    if [[ " ${sees[$layer]} " == *" $other "* ]]; then
      expected=yes
    fi
    if [ "$found" != "$expected" ]; then
      echo "$layer includes from $other: $found, expected $expected"
      failures=1
    fi
  done
done
# And the compiler agrees.
echo '#include "actors/tree.hpp"' >"$work/up.cpp"
if "$2" -std=c++20 -fsyntax-only -I"$1/layers/api" -I"$1/layers/cache" -I"$1/layers/base" -I"$1/layers/messages" "$work/up.cpp" 2>/dev/null; then
  echo "cache can include actors"
  failures=1
fi
exit "$failures"
