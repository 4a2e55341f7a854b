#!/usr/bin/env bash
# launch/quickstart.sh
#
# Installs what is missing, builds, and shows what hicache does: one index and two instances of two ranks each that serve
# the same multi-turn conversations, the second one later. Leaves build/quickstart/report.json and no process.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/release/bin
out=$root/build/quickstart
pids=()

# Ends whatever is still running, whoever ended us, from the last started to the first: the ranks rather than their mpirun,
# so that they finish in order. Whoever has not ended after 15 seconds is killed.
clean_up() {
  local i pid tries
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do
    pid=${pids[i]}
    pkill -TERM -P "$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || continue
    for ((tries = 0; tries < 150; ++tries)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    pkill -KILL -P "$pid" 2>/dev/null || true
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  pids=()
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for FILE PATTERN PID WHAT: until the file has a line that matches, for at most a minute.
wait_for() {
  local i
  for ((i = 0; i < 600; ++i)); do
    if grep -q "$2" "$1" 2>/dev/null; then
      return 0
    fi
    if ! kill -0 "$3" 2>/dev/null; then
      break
    fi
    sleep 0.1
  done
  echo "quickstart: $4 did not get ready; its last words:" >&2
  tail -n 5 "$1" "${1%.out}.err" >&2 || true
  exit 1
}

"$root/launch/install-packages.sh"

mkdir -p "$out"
build_log=$out/build.log
echo "Building (the first time takes some minutes; progress is in $build_log)"
if ! (cd "$root" && cmake --preset release && cmake --build --preset release \
        --target hicache-index hicache-replay hicachectl -j "$(nproc)") >"$build_log" 2>&1; then
  echo "quickstart: the build failed; see $build_log:" >&2
  tail -n 20 "$build_log" >&2
  exit 1
fi

# Everything runs in sessions of its own (setsid), so that Ctrl-C reaches only this script, which then ends all in order.
rm -f "$out"/*.json "$out"/*.out "$out"/*.err
setsid "$bin/hicache-index" --listen 127.0.0.1:0 >"$out/index.out" 2>"$out/index.err" &
pids+=($!)
wait_for "$out/index.out" '^listening on' "$!" "the index"
index=$(sed -n 's/^listening on //p' "$out/index.out")
echo "Index: $index"

# instance NUMBER FLAGS...: starts one in the background.
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

echo "Instance 2: two new ranks serve the same conversations, while instance 1 lends its memory"
instance 2
second=$!
if ! wait "$second"; then
  echo "quickstart: instance 2 failed; see $out/instance-2.err" >&2
  exit 1
fi
cat "$out/instance-2.out"

"$bin/hicachectl" status --index "$index"
clean_up

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
