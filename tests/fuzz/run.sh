#!/usr/bin/env bash
# tests/fuzz/run.sh [SECONDS [SEED]]
#
# Builds the fuzzers with clang in build/fuzz and runs each for SECONDS (60) on a copy of its seed corpus, with random numbers
# from SEED (0: another one each time), one on each core. An input that fails is left in build/fuzz/findings; run the fuzzer
# with it as the only argument to see it again.
set -euo pipefail

seconds=${1:-60}
seed=${2:-0}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$root/build/fuzz
fuzzers=(op_script_fuzz key_fuzz wire_fuzz rpc_fuzz disk_record_fuzz page_header_fuzz page_messages_fuzz page_server_fuzz page_client_fuzz rank_link_fuzz storage_config_fuzz model_files_fuzz discovery_fuzz serde_fuzz redis_fuzz s3_fuzz router_fuzz handoff_fuzz)

cmake -S "$root" -B "$build" -G Ninja -D CMAKE_CXX_COMPILER=clang++ -D CMAKE_C_COMPILER=clang -D CMAKE_BUILD_TYPE=RelWithDebInfo \
  -D CMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" \
  -D CMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer" -D HICACHE_CUDA=OFF \
  -D HICACHE_BUILD_BENCH=OFF
cmake --build "$build" --target "${fuzzers[@]}" -j "$(nproc)"

export ASAN_OPTIONS=abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
mkdir -p "$build/findings" "$build/corpus"
# fuzz FUZZER: tells what it printed when it has ended.
fuzz() {
  rm -rf "$build/corpus/$1"
  cp -r "$here/corpus/$1" "$build/corpus/$1"
  local status=0
  "$build/tests/fuzz/$1" "$build/corpus/$1" -max_total_time="$seconds" -seed="$seed" -max_len=4096 -rss_limit_mb=4096 -timeout=20 \
    -artifact_prefix="$build/findings/$1-" -print_final_stats=1 >"$build/findings/$1.log" 2>&1 || status=$?
  echo "== $1, $seconds seconds: $([[ $status = 0 ]] && echo "nothing found" || echo "FAILED")"
  [[ $status = 0 ]] && tail -n 8 "$build/findings/$1.log" || cat "$build/findings/$1.log"
  return "$status"
}
export -f fuzz
export here build seconds seed
printf '%s\n' "${fuzzers[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
