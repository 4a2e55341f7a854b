#!/usr/bin/env bash
# launch/quickstart.sh [--model FOLDER] [--engine vllm|sglang]
#
# Installs missing packages, builds, and demonstrates hicache: one index and two instances of two ranks each serve the same
# multi-turn conversations, one after the other. Then two instances of a small engine (examples/llama) complete the same conversations with a model
# on the CPU, the second with KV that the first has computed. Leaves build/quickstart/report.json and no process.
#
# With --model: that part alone, with a model of the Llama, Qwen2 or Qwen3 families: config.json and safetensors. Without it the model is a tiny one
# of random weights.
#
# With --engine: one index, one node, and two real engines of that kind, the second started after the first has ended, serve the same prompts
# with a tiny model on the CPU. First creates an environment for the engine from PyPI (3 GB, some minutes; see tests/engines/run.sh).
set -euo pipefail

engine=
model=
while (($#)); do
  case $1 in
    --engine)
      engine=${2:-}
      if [[ $engine != vllm && $engine != sglang ]]; then
        echo "quickstart: --engine: '$engine' is not known; expected vllm or sglang" >&2
        exit 2
      fi
      shift
      ;;
    --model)
      model=${2:-}
      if [[ ! -f $model/config.json ]]; then
        echo "quickstart: --model: there is no $model/config.json; expected a folder with config.json and safetensors" >&2
        exit 2
      fi
      shift
      ;;
    -h | --help)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "quickstart: unknown argument '$1'; expected --model FOLDER, --engine vllm, --engine sglang or nothing" >&2
      exit 2
      ;;
  esac
  shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/release/bin
out=$root/build/quickstart
. "$root/launch/processes.sh"

"$root/launch/install-packages.sh"

targets=(hicache-index hicache-replay hicache-llama hicachectl)
[[ -z $engine ]] || targets=(hicache-index hicache-node hicachectl hicache_c)
build "${targets[@]}"

rm -f "$out"/*.json "$out"/*.out "$out"/*.err
setsid "$bin/hicache-index" --listen 127.0.0.1:0 >"$out/index.out" 2>"$out/index.err" &
pids+=($!)
wait_for "$out/index.out" '^listening on' "$!" "the index"
index=$(sed -n 's/^listening on //p' "$out/index.out")
echo "Index: $index"

# serve_by_engines: runs two engines one after the other; the node keeps what the first has computed.
serve_by_engines() {
  local cache=${HICACHE_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/hicache/engines} tests=$root/tests/engines number
  local python=$cache/$engine/bin/python model=$cache/model modules=$root/clients/python:$root/examples/engines
  # Modules that SGLang lacks on a machine without a GPU.
  [[ $engine != sglang ]] || modules+=:$tests/sglang/cpu_shim
  mkdir -p "$cache"
  python3 "$tests/environment.py" "$engine" "$cache/$engine"
  "$python" "$tests/tiny_model.py" "$model"
  # Socket paths are limited to 107 bytes.
  folder=$(mktemp -d -t hicache-quickstart-XXXXXX)
  setsid "$bin/hicache-node" --memory 256MiB --socket "$folder/node" --index "$index" >"$out/node.out" 2>"$out/node.err" &
  pids+=($!)
  wait_for "$out/node.out" '^listening on' "$!" "the node"
  echo "Node: 256 MiB at $folder/node"
  for number in 1 2; do
    echo "Engine $number: ${engine} serves four prompts$( ((number == 1)) || echo ", which engine 1 has computed")"
    PYTHONPATH=$modules HICACHE_LIBRARY=$root/build/release/c_abi/libhicache.so.1 HICACHE_BIN=$bin \
      PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 setsid "$python" "$root/examples/engines/${engine}_prompts.py" "$model" "$folder/node" "$out/engine-$number.json" \
      >"$out/engine-$number.out" 2>"$out/engine-$number.err" &
    pids+=($!)
    if ! wait "$!"; then
      echo "quickstart: engine $number failed; its last words:" >&2
      tail -n 5 "$out/engine-$number.err" >&2
      exit 1
    fi
    grep '^prompt of' "$out/engine-$number.out"
  done
  "$bin/hicachectl" node status --socket "$folder/node"
  clean_up
  python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
first, second = [json.load(open(f"{out}/engine-{n}.json")) for n in (1, 2)]
json.dump({"engines": [first, second]}, open(f"{out}/report.json", "w"), indent=2)
if [row["tokens"] for row in first] != [row["tokens"] for row in second]:
    sys.exit("quickstart: the engines answered with other tokens")
figures = [[sum(row[what] for row in rows) for what in ("prompt", "cached", "seconds")] for rows in (first, second)]
(prompt, before, slow), (_, cached, fast) = figures
if cached <= before:
    sys.exit("quickstart: engine 2 found nothing in the node")
print(f"Engine 1 computed {prompt - before} of {prompt} tokens in {slow:.2f} s. Engine 2, a new process, computed {prompt - cached} in {fast:.2f} s, and answered the same.")
PY
  echo "Report: $out/report.json"
}

if [[ -n $engine ]]; then
  serve_by_engines
  exit
fi

# serve_by_model: two instances of two ranks complete the same conversations; the second one while the first exports its memory.
serve_by_model() {
  local number addresses=()
  if [[ -z $model ]]; then
    model=$out/model
    python3 "$root/examples/llama/make_model.py" "$model"
  fi
  for number in 1 2; do
    OPENBLAS_NUM_THREADS=1 setsid "$root/launch/mpirun.sh" 2 "$bin/hicache-llama" "$model" --listen 127.0.0.1:0 --page-size 16 --device-pages 1024 \
      --hicache-storage-backend cluster --index "$index" --segment-size 64MiB --hicache-storage-backend-extra-config '{"prefetch_threshold": 16}' \
      >"$out/llama-$number.out" 2>"$out/llama-$number.err" &
    pids+=($!)
    wait_for "$out/llama-$number.out" '^listening on' "$!" "engine $number"
    addresses+=("$(sed -n 's/^listening on //p' "$out/llama-$number.out")")
    echo "Engine $number: two ranks complete four conversations of three turns at http://${addresses[-1]}/v1/completions"
    python3 "$root/examples/llama/converse.py" "${addresses[-1]}" "$out/llama-$number.json"
  done
  clean_up
  python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
first, second = [json.load(open(f"{out}/llama-{n}.json")) for n in (1, 2)]
json.dump({"engines": [first, second]}, open(f"{out}/llama-report.json", "w"), indent=2)
if [turn["token_ids"] for turn in first] != [turn["token_ids"] for turn in second]:
    sys.exit("quickstart: the engines answered with other tokens")
prompt, before, cached = sum(t["prompt_tokens"] for t in first), sum(t["cached_tokens"] for t in first), sum(t["cached_tokens"] for t in second)
if cached <= before:
    sys.exit("quickstart: engine 2 found nothing of engine 1")
print(f"Engine 1 computed {prompt - before} of {prompt} tokens, engine 2 {prompt - cached}: the others came from engine 1. Both answered with the same text.")
PY
  echo "Report: $out/llama-report.json"
}

if [[ -n $model ]]; then
  serve_by_model
  exit
fi

# instance NUMBER FLAGS...: starts an instance in the background.
instance() {
  local number=$1
  shift
  setsid "$root/launch/mpirun.sh" 2 "$bin/hicache-replay" --workload multi-turn --clients 8 --rounds 8 --verify all \
    --device-pages 256 --hicache-storage-backend cluster --index "$index" --segment-size 64MiB \
    --hicache-storage-backend-extra-config '{"prefetch_threshold": 64}' --report "$out/instance-$number.json" "$@" \
    >"$out/instance-$number.out" 2>"$out/instance-$number.err" &
  pids+=($!)
}

echo "Instance 1: two ranks serve 8 conversations of 8 turns; nothing is cached yet"
instance 1 --linger forever
first=$!
wait_for "$out/instance-1.out" 'requests in' "$first" "instance 1"
cat "$out/instance-1.out"

echo "Instance 2: two new ranks serve the same conversations, while instance 1 exports its memory"
instance 2
second=$!
if ! wait "$second"; then
  echo "quickstart: instance 2 failed; see $out/instance-2.err" >&2
  exit 1
fi
cat "$out/instance-2.out"

"$bin/hicachectl" status --index "$index"
kill "$first"
wait "$first" || true

python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
reports = [json.load(open(f"{out}/instance-{n}.json")) for n in (1, 2)]
json.dump({"instances": reports}, open(f"{out}/report.json", "w"), indent=2)
wrong = [f"instance {n}: {what}" for n, r in enumerate(reports, 1)
         for what, count in (("wrong bytes", r["verify"]["mismatches"]), ("errors", r["errors"]),
                             ("diverged ranks", r["divergences"])) if count]
if reports[1]["cached_tokens"]["l3"] == 0:
    wrong.append("instance 2 found nothing in L3")
if wrong:
    sys.exit("quickstart: " + "; ".join(wrong))
saved = sum(reports[1]["cached_tokens"].values())
print(f"Instance 2 computed {reports[1]['computed_tokens']} of {reports[1]['prompt_tokens']} tokens; "
      f"{reports[1]['cached_tokens']['l3']} came from L3, which instance 1 had filled.")
PY
echo "Report: $out/report.json"

serve_by_model
