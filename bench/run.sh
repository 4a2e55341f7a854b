#!/usr/bin/env bash
# bench/run.sh {tree|transfer|step|store|node|identity|tiers|codecs|engines|ttft|scaling|all} [--short] [--only PART,...] [--json FILE]
#
# Builds what it needs, runs each measurement and its baseline in the same run, and prints one table. --json also writes the
# rows to FILE. Exits with 0 when all measurements ran, whether or not they meet their targets. Takes a minute or two plus the build.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'TEXT'
Usage: bench/run.sh {tree|transfer|step|store|node|identity|tiers|codecs|engines|ttft|scaling|all} [--short] [--only PART,...] [--json FILE]

  tree         the prefix cache on one core: match, insert, lock, eviction, events, memory, and its actor
  transfer     copies between L1 and L2 in host memory, and of a GPU if one answers
  step         a step of 2 and 4 ranks, waiting for a late rank, prefetching from a slow store, naming a long prompt, a miss with L3,
               the default layout of L2 beside all others
  store        the cluster store by separate processes: values, the index, restarts; beside ucx_perftest if it is installed
  node         pages that clients put into the memory of a node and read there, beside memcpy
  identity     the digest of a checkpoint, beside reading it
  tiers        an order of stores beside its stores alone, and what it keeps beside an ideal LRU; disk, redis, s3, mooncake and nixl beside fio, redis-benchmark, libcurl and their own clients
  codecs       what codecs keep of computed KV, and how fast they are, beside memcpy
  engines      a node's clients in Python beside those in C++; the store file beside SGLang's and LMCache's files; real engines that start with a filled node, beside what they have themselves
               (makes environments of 3 GB each from PyPI, see tests/engines/run.sh; not part of all)
  ttft         time to the first token of an engine on the CPU: computed, and from each tier, over the length of the prompt (draws docs/pictures/ttft.svg);
               prefill in another instance; the router; under load (a quarter of an hour)
  scaling      the index of L3 in virtual time: 1000 members, 100 million keys, 16 and 64 shards (16 GB, half an hour)
  all          everything that there is, scaling short
  --short      scaling: 100 members and 2 million keys; ttft: prompts of at most 2048 tokens, and less of everything (two minutes)
  --only PART,...  ttft: some of compute-bound, memory-bound, handoff, router and load
  --json FILE  write the rows to FILE as well:
               [{"name", "value", "unit", "baseline", "ratio", "target", "holds"}]

Installs what is missing, builds build/release, measures each figure beside its baseline in the same run and prints one
table: what, figure, unit, baseline, ratio, target, holds. Ends with 0 when it has measured, whatever it found.
TEXT
}

# give_up SENTENCE: usage error.
give_up() {
  echo "bench/run.sh: $1" >&2
  exit 2
}

what=
json=
short=
only=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --json)
      [ $# -gt 1 ] || give_up "--json needs the name of a file"
      json=$2
      shift
      ;;
    --short) short=1 ;;
    --only)
      [ $# -gt 1 ] || give_up "--only needs names of parts"
      only=$2
      shift
      ;;
    tree | transfer | step | store | node | identity | tiers | codecs | engines | ttft | scaling | all)
      [ -z "$what" ] || give_up "one measurement at a time, or all"
      what=$1
      ;;
    *) give_up "unknown argument '$1'; bench/run.sh --help says what there is" ;;
  esac
  shift
done
[ -n "$what" ] || give_up "say what to measure: tree, transfer, step, store, node, identity, tiers, codecs, engines, ttft, scaling or all"

# wants PART: true if the part is selected.
wants() { [ "$what" = "$1" ] || { [ "$what" = all ] && [ "$1" != engines ]; }; }

targets=()
! wants tree || targets+=(tree_bench tree_actor_bench)
! wants transfer || targets+=(transfer_bench)
! wants node || targets+=(node_bench)
! wants identity || targets+=(hicache_c)
! wants tiers || targets+=(tiers_bench tiers_hits stores_bench)
! wants codecs || targets+=(serde_bench)
! wants engines || targets+=(node_bench stores_bench hicache-node hicache_c)
! wants ttft || targets+=(hicache-llama hicache-index hicache-router)
! wants scaling || targets+=(scaling_bench)
! wants step || targets+=(step_bench hicache-replay hicache-index)
! wants store || targets+=(store_bench hicache-bench hicache-index hicachectl)

packages=()
! wants tiers || packages+=(fio redis-server python3-venv)
! wants ttft || packages+=(python3-venv)
"$root/launch/install-packages.sh" "${packages[@]}" >&2
cd "$root"
echo "Configuring and building build/release" >&2
cmake --preset release -DHICACHE_BUILD_BENCH=ON >&2
cmake --build --preset release -j "$(nproc)" --target "${targets[@]}" >&2
cd - >/dev/null

results=$(mktemp -d -t hicache-bench-XXXXXX)
trap 'rm -rf "$results"' EXIT

# measure PROGRAM [FILTER]: repeats its benchmarks interleaved, so that slow phases of the machine affect all alike.
measure() {
  echo "Measuring: $1 ${2:-}" >&2
  local out
  out=$(mktemp "$results/$1-XXXXXX.json")
  "$root/build/release/bench/$1" --benchmark_filter="${2:-.}" --benchmark_repetitions=9 \
    --benchmark_enable_random_interleaving=true --benchmark_min_time=0.1 --benchmark_out="$out" \
    --benchmark_out_format=json >"$results/$1.log" 2>&1 || {
    cat "$results/$1.log" >&2
    exit 1
  }
}

# measure_step RANKS PART: runs one part of step_bench on RANKS ranks.
measure_step() {
  echo "Measuring: step_bench $2, $1 ranks" >&2
  "$root/launch/mpirun.sh" "$1" "$root/build/release/bench/step_bench" "$2" "$results/step_$2_$1.json"
}

if wants tree; then
  # In separate processes: trees of a million leaves fragment the heap, which slows down everything else.
  measure tree_bench '-evict|memory'
  measure tree_bench 'evict|memory'
  measure tree_actor_bench
fi
if wants transfer; then
  # Repeats and interleaves by itself.
  "$root/build/release/bench/transfer_bench" --json "$results/transfer_bench.json"
fi
if wants step; then
  # These repeat and interleave by themselves, too.
  measure_step 2 ranks
  measure_step 2 latency
  measure_step 4 latency
  for part in layouts prefetch; do
    echo "Measuring: step_bench $part" >&2
    "$root/build/release/bench/step_bench" "$part" "$results/step_$part.json"
  done
  echo "Measuring: misses with and without L3" >&2
  python3 -B "$root/bench/step_replay.py" "$root/build/release" "$results/step_replay.json"
fi
if wants store; then
  python3 -B "$root/bench/store.py" "$root/build/release" "$results/store.json"
fi
if wants node; then
  measure node_bench
fi
if wants identity; then
  HICACHE_LIBRARY=$root/build/release/c_abi/libhicache.so.1 PYTHONPATH=$root/clients/python python3 -B "$root/bench/identity.py" "$results/identity.json"
fi
if wants tiers; then
  measure tiers_bench
  HICACHE_MOTO_SERVER=$("$root/tests/support/moto.sh") HICACHE_STORE_PYTHON=$("$root/tests/support/store_python.sh") PYTHONPATH=$root/clients/python \
    python3 -B "$root/bench/stores.py" "$root/build/release" "$results/stores.json"
  trace=$root/../shared/traces/conversation_trace.jsonl
  if [ -e "$trace" ]; then
    echo "Measuring: tiers_hits on the conversation trace" >&2
    (cd "$results" && "$root/build/release/bench/tiers_hits" "$trace" "$results/tiers_hits.json")
  fi
fi
if wants codecs; then
  echo "Measuring: serde_bench on KV of a made model" >&2
  python3 -B "$root/examples/llama/make_model.py" "$results/model" --vocabulary 8192 --layers 8 --hidden 256 --intermediate 512 --heads 8 --kv-heads 4 --head-dim 128
  (cd "$root" && build/release/bench/serde_bench "$results/model" docs/internals.md "$results/serde.json")
fi
if wants engines; then
  HICACHE_LIBRARY=$root/build/release/c_abi/libhicache.so.1 HICACHE_BIN=$root/build/release/bin PYTHONPATH=$root/clients/python \
    python3 -B "$root/bench/engines/store.py" "$root/build/release/bench/node_bench" "$results/python.json"
  for engine in sglang lmcache; do
    "$root/tests/engines/run.sh" "$engine" --run "$root/bench/engines/files.py" "$engine" "$root/build/release/bench/stores_bench" "$results/files_$engine.json"
  done
  for engine in vllm sglang; do
    echo "Measuring: $engine with a node, with what it has itself, and with nothing" >&2
    "$root/tests/engines/run.sh" "$engine" --run "$root/bench/engines/$engine.py"
  done
fi
if wants ttft; then
  HICACHE_STORE_PYTHON=$("$root/tests/support/store_python.sh") \
    python3 -B "$root/bench/ttft.py" "$root/build/release" "$results/ttft.json" "$root/docs/pictures/ttft.svg" ${short:+--short} ${only:+--only "$only"}
fi
if wants scaling; then
  size=()
  [ -z "$short" ] && [ "$what" = scaling ] || size=(--members 100 --keys 2000000)
  for shards in 16 64; do
    echo "Simulating an index of $shards shards" >&2
    "$root/build/release/bench/scaling_bench" --shards "$shards" "${size[@]}" --json "$results/scaling_$shards.json"
  done
fi
python3 -B "$root/bench/table.py" ${json:+--json "$json"} "$results"/*.json
