#!/usr/bin/env bash
# launch/tiers.sh
#
# Installs missing packages, builds, and shows L3 as an order of stores: two instances of two ranks keep their pages in memory, on disk and
# in a Redis that both use. Then everything is killed with kill -9, Redis starts empty, and the instances find their pages on disk.
# Leaves build/tiers/*.json and no process.
set -euo pipefail

if (($#)); then
  if [[ $1 != -h && $1 != --help ]]; then
    echo "tiers: unknown argument '$1'; expected nothing" >&2
    exit 2
  fi
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 0
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/release/bin
out=$root/build/tiers
. "$root/launch/processes.sh"

"$root/launch/install-packages.sh" redis-server
build hicache-replay
folder=$(mktemp -d -t hicache-tiers-XXXXXX)
rm -f "$out"/*.json "$out"/*.hits "$out"/*.out "$out"/*.err

free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# redis ROUND: starts an empty server.
redis() {
  setsid redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$folder" >"$out/redis-$1.out" 2>"$out/redis-$1.err" &
  pids+=($!)
  wait_for "$out/redis-$1.out" 'Ready to accept connections' "$!" "Redis"
}

# instance NUMBER ROUND: serves conversations, and stays. The second one has those of the first and as many more.
instance() {
  local name=$1-$2 metrics
  metrics=$(free_port)
  setsid "$root/launch/mpirun.sh" 2 "$bin/hicache-replay" --workload multi-turn --clients $((8 * $1)) --rounds 8 --verify all \
    --device-pages 256 --hicache-storage-backend tiered --hicache-storage-backend-extra-config '{"prefetch_threshold": 64, "tiers": [
      {"backend": "memory", "max_bytes": "4MiB"},
      {"backend": "disk", "path": "'"$folder/instance-$1"'", "max_bytes": "256MiB"},
      {"backend": "redis", "servers": "127.0.0.1:'"$port"'", "codecs": "lz4"}]}' \
    --metrics-port "$metrics" --report "$out/$name.json" --linger forever >"$out/$name.out" 2>"$out/$name.err" &
  pids+=($!)
  wait_for "$out/$name.out" 'requests in' "$!" "instance $1"
  cat "$out/$name.out"
  # Of rank 0; those of the other rank are like them.
  python3 - "$metrics" "$out/$name.hits" <<'PY'
import json, re, sys, urllib.request
text = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode()
hits = {}
for labels, value in re.findall(r"^hicache_storage_tier_hits_total\{(.*)\} (\d+)", text, re.MULTILINE):
    label = dict(re.findall(r'(\w+)="(.*?)"', labels))
    hits[label["number"], label["backend"]] = int(value)
for (number, backend), objects in sorted(hits.items()):
    print(f"  tier {number}, {backend}: {objects} objects read")
json.dump({backend: objects for (_, backend), objects in hits.items()}, open(sys.argv[2], "w"))
PY
}

port=$(free_port)
for round in 1 2; do
  if ((round == 1)); then
    echo "Memory, disk and Redis under two instances, one after the other; nothing is stored yet"
  else
    echo "The same again, in new processes, with an empty Redis"
  fi
  redis "$round"
  for number in 1 2; do
    echo "Instance $number"
    instance "$number" "$round"
  done
  if ((round == 1)); then
    echo "kill -9 of both instances and Redis"
    # The shell need not say that they were killed.
    disown -a
    for pid in "${pids[@]}"; do
      pkill -KILL -s "$pid" || true
      while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
    pids=()
  fi
done
clean_up

python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
for number in (1, 2):
    before, after = [json.load(open(f"{out}/{number}-{turn}.json")) for turn in (1, 2)]
    if after["verify"]["mismatches"] or after["errors"] or after["divergences"]:
        sys.exit(f"tiers: instance {number} failed; see {out}/{number}-2.json")
    if json.load(open(f"{out}/{number}-2.hits"))["disk"] == 0:
        sys.exit(f"tiers: instance {number} found nothing on its disk")
    print(f"Instance {number}: {before['prompt_tokens']} tokens, of which it computed {before['computed_tokens']}; after kill -9 of everything {after['computed_tokens']}.")
PY
