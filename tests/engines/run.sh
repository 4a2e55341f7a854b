#!/usr/bin/env bash
# tests/engines/run.sh [sglang|vllm|lmcache|nixl|sglang@RELEASE|vllm@RELEASE]... [-- PYTEST_ARGUMENTS... | --run PROGRAM ARGUMENTS...]
#
# Runs hicache's plug-ins in the engines that they are for, real ones, with a tiny model on the CPU: all that are named, or all. Makes an environment
# for each engine first (3 GB, 2 minutes; kept in $HICACHE_ENGINES, or ~/.cache/hicache/engines) from PyPI. Other releases of an engine, those of which there is
# a packages_ENGINE@RELEASE.txt, come on top of its environment (1 GB).
# With --run it runs another program by the environment's Python instead of the tests.
# The library and the programs are those of build/release, or those that HICACHE_LIBRARY and HICACHE_BIN name. The plug-in for NIXL is
# tested where it was built, with -D NIXL_INCLUDE_DIR (docs/engines/nixl.md), or where HICACHE_NIXL_PLUGIN names it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${HICACHE_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/hicache/engines}
all=(sglang vllm lmcache nixl)
for list in "$here"/packages_*@*.txt; do
  list=${list##*/packages_}
  all+=("${list%.txt}")
done
engines=()
while (($#)) && [[ $1 != -- && $1 != --run ]]; do
  case " ${all[*]} " in
    *" $1 "*) engines+=("$1") ;;
    *)
      if [[ $1 == -h || $1 == --help ]]; then
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
        exit 0
      fi
      echo "run.sh: no engine \"$1\"; expected one of ${all[*]}" >&2
      exit 2
      ;;
  esac
  shift
done
program=()
if [[ ${1:-} == --run ]]; then
  program=("${@:2}")
  ((${#program[@]})) || { echo "run.sh: --run: expected a program" >&2; exit 2; }
elif (($#)); then
  shift
fi
((${#engines[@]})) || engines=("${all[@]}")

export HICACHE_LIBRARY=${HICACHE_LIBRARY:-$root/build/release/c_abi/libhicache.so.1} HICACHE_BIN=${HICACHE_BIN:-$root/build/release/bin}
export PYTHONDONTWRITEBYTECODE=1
export HICACHE_ENGINE_MODEL=$cache/model HICACHE_ENGINE_MODEL_OF_TWO_GROUPS=$cache/model_of_two_groups
export HICACHE_NIXL_PLUGIN=${HICACHE_NIXL_PLUGIN:-$root/build/release/clients/nixl/libplugin_HICACHE.so}
[[ -e $HICACHE_NIXL_PLUGIN ]] || unset HICACHE_NIXL_PLUGIN
mkdir -p "$cache"
status=0
for engine in "${engines[@]}"; do
  if [[ $engine == nixl && -z ${HICACHE_NIXL_PLUGIN:-} ]]; then
    echo "== nixl: skipped, since the plug-in was not built"
    continue
  fi
  # LMCache and NIXL work for vLLM, so they are in the same environment.
  environment=vllm
  [[ $engine != sglang* ]] || environment=sglang
  python3 "$here/environment.py" "$environment" "$cache/$environment"
  export PYTHONPATH=$root/clients/python:$here
  if [[ $engine == *@* ]]; then
    python3 "$here/environment.py" "$engine" "$cache/$engine"
    export PYTHONPATH=$cache/$engine:$PYTHONPATH
  fi
  python=$cache/$environment/bin/python
  "$python" "$here/tiny_model.py" "$HICACHE_ENGINE_MODEL"
  "$python" "$here/tiny_model.py" "$HICACHE_ENGINE_MODEL_OF_TWO_GROUPS" --sliding-window
  if ((${#program[@]})); then
    "$python" "${program[@]}" || status=1
    continue
  fi
  echo "== $engine"
  "$python" -m pytest -q -p no:cacheprovider "$@" "$here/${engine%@*}" || status=1
done
exit $status
