# Functions of the scripts that show hicache: they start programs and leave no process. Source it after setting `root`, the repository,
# and `out`, a folder for what programs print. Programs run in their own sessions (setsid) and are added to `pids`, so that Ctrl-C
# reaches only the script, which then ends them in order.

pids=()

# Ends all remaining processes in reverse order of start. Signals the ranks rather than their mpirun, so that they finish in order.
# Kills what has not ended after 15 seconds.
clean_up() {
  local i pid tries
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do
    pid=${pids[i]}
    pkill -TERM -P "$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || continue
    for ((tries = 0; tries < 150; ++tries)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    # Each is a session leader; kill its whole process group.
    kill -KILL -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  pids=()
  rm -rf "$folder"
}
folder=
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for FILE PATTERN PID WHAT: waits up to a minute for a matching line in the file.
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
  echo "$(basename "$0" .sh): $4 did not get ready; its last words:" >&2
  tail -n 5 "$1" "${1%.out}.err" >&2 || true
  exit 1
}

# build TARGET...: builds these in build/release.
build() {
  local build_log=$out/build.log
  mkdir -p "$out"
  echo "Building (the first time takes some minutes; progress is in $build_log)"
  if ! (cd "$root" && cmake --preset release && cmake --build --preset release --target "$@" -j "$(nproc)") >"$build_log" 2>&1; then
    echo "$(basename "$0" .sh): the build failed; see $build_log:" >&2
    tail -n 20 "$build_log" >&2
    exit 1
  fi
}
