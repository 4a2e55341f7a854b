#!/usr/bin/env bash
# tests/gpu/run.sh [--results DIR] [--seconds X] [--programs DIR] | --build DIR | --pack FILE.tar.gz
#
# Builds the tests of the gpu layer, those of the CUDA path of examples/llama and the transfer benchmark with nvcc alone and runs them on the
# GPU of this machine: for machines that have a GPU and little else. Ends with 77 where no GPU answers.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'TEXT'
Usage: tests/gpu/run.sh [--results DIR] [--seconds X] [--programs DIR]
       tests/gpu/run.sh --build DIR
       tests/gpu/run.sh --pack FILE.tar.gz

  --results DIR       where transfer-<GPU>.json goes: device, driver, figures, ratios; $OUT or this folder if not given
  --seconds X         for each case of the benchmark
  --programs DIR      also run tests/gpu/programs_test.py with the build of all of hicache in DIR, such as build/release: the engine of examples/llama,
                      hicache-replay, and the Python package with torch
  --build DIR         only build the programs, for GPUs from Ampere on, and leave them in DIR
  --pack FILE.tar.gz  write the sources and the headers of other projects that they need to an archive, which unpacks
                      anywhere and in which this script does all of the above

Needs nvcc and its host compiler, and cuBLAS for the tests of examples/llama. Runs the tests with freed memory poisoned, then those of the GPU under compute-sanitizer if
that is installed, then the benchmark. Ends with 0 if all was well, 77 where no GPU answers.
TEXT
}

# give_up SENTENCE: for what the caller got wrong.
give_up() {
  echo "tests/gpu/run.sh: $1" >&2
  exit 2
}

# no_gpu REASON: not an error, but nothing was tested.
no_gpu() {
  echo "tests/gpu/run.sh: no GPU answers on this machine ($1), so nothing was run"
  exit 77
}

what=run
target=
results=${OUT:-$PWD}
seconds=
programs=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --results | --seconds | --programs | --build | --pack)
      [ $# -gt 1 ] || give_up "$1 needs a value"
      case $1 in
        --results) results=$2 ;;
        --seconds) seconds=$2 ;;
        --programs) programs=$(realpath "$2") ;;
        *) what=${1#--} target=$2 ;;
      esac
      shift
      ;;
    *) give_up "unknown argument '$1'; tests/gpu/run.sh --help says what there is" ;;
  esac
  shift
done

scratch=$(mktemp -d -t hicache-gpu-XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# What is built, relative to the root. The headers lie beside these files.
cd "$root"
library=(base/{batch_copier,check,clock,copy_workers,error,names,unique_fd,unique_mapping,units}.cpp messages/ids.cpp messages/operations.cpp cache/geometry.cpp gpu/*.cpp gpu/*.cu)
tests=(tests/gpu/*_test.cpp)
benchmark=({bench,launch}/transfer_*.cpp {bench,launch}/transfer_*.cu)
engine=(examples/llama/{cuda_processor,transformer}.cpp examples/llama/*.cu)
engine_tests=(tests/llama/cuda_processor_test.cpp)
cd - >/dev/null

# A pack brings GoogleTest, tl::expected and xxhash along; elsewhere Debian's packages have them.
# Relative paths, because flags travel as text and the root's name may have spaces.
googletest=/usr/src/googletest
includes="-I . -I include"
if [ -d "$root/third_party" ]; then
  googletest=third_party/googletest
  includes="-I . -I include -I third_party/include"
fi
(cd "$root" && [ -d "$googletest/googlemock/src" ]) \
  || give_up "there is no $googletest/googlemock; install libgtest-dev and libgmock-dev, or use a pack"

pack() {
  local top=$scratch/hicache-gpu header found
  mkdir -p "$top/third_party/include/tl" "$top/third_party/googletest"
  for header in tl/expected.hpp xxhash.h; do
    found=$(echo "#include <$header>" | c++ -std=c++20 -M -x c++ - | grep -o "[^ ]*/$header") \
      || give_up "the compiler finds no $header; install libexpected-dev and libxxhash-dev"
    cp "$found" "$top/third_party/include/$header"
  done
  (
    cd "$root"
    for part in googletest googlemock; do
      mkdir "$top/third_party/googletest/$part"
      cp -r "$googletest/$part"/{include,src} "$top/third_party/googletest/$part/"
    done
    cp --parents "${library[@]}" "${tests[@]}" "${benchmark[@]}" "${engine[@]}" "${engine_tests[@]}" base/*.hpp include/hicache/*.hpp messages/{commands,storage_batch,storage_change}.hpp cache/copy_strips.hpp \
      gpu/*.hpp tests/gpu/*.hpp {bench,launch}/transfer_*.hpp examples/llama/*.hpp tests/llama/*.hpp tests/gpu/run.sh LICENSE "$top"
  )
  tar -czf "$target" -C "$scratch" hicache-gpu
  echo "Packed $(tar -tzf "$target" | grep -vc '/$') files into $target"
}

find_nvcc() {
  local folder
  for folder in "${CUDA_PATH:-/usr/local/cuda}/bin" /usr/local/cuda/bin; do
    PATH=$PATH:$folder
  done
  command -v nvcc >/dev/null || give_up "nvcc was not found; put the CUDA toolkit's bin folder on the PATH"
}

# Machine code for the GPU at hand if both nvidia-smi and nvcc know its architecture.
architectures() {
  local own
  own=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ') || own=
  if [ "$what" = run ] && [ -n "$own" ] && nvcc --list-gpu-arch | grep -qx "compute_$own"; then
    echo "-gencode arch=compute_$own,code=sm_$own"
    return
  fi
  # The last one as text for the driver's compiler too, for later GPUs.
  echo "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90"
}

# compile FOLDER FLAGS SOURCE...: object files into FOLDER, as many at a time as there are cores.
compile() {
  local folder=$1 flags=$2
  shift 2
  mkdir -p "$folder"
  printf '%s\n' "$@" | (
    cd "$root"
    xargs -P "$(nproc)" -I SOURCE sh -c "nvcc $flags -c \"\$1\" -o \"\$2/\$(echo \"\$1\" | tr / _).o\"" sh SOURCE "$folder"
  )
}

build() {
  local folder=$1 flags
  flags="-std=c++20 -O2 --expt-relaxed-constexpr -DHICACHE_HAVE_CUDA $includes $(architectures)"
  echo "Building: $(nvcc --version | grep -o 'release [0-9.]*'), $(architectures)"
  mkdir -p "$folder"
  compile "$scratch/library" "$flags" "${library[@]}"
  local test_flags="$flags -I $googletest/googletest/include -I $googletest/googlemock/include"
  compile "$scratch/tests" "$test_flags" "${tests[@]}"
  compile "$scratch/googletest" "-std=c++20 -O1 -I $googletest/googletest -I $googletest/googletest/include \
    -I $googletest/googlemock -I $googletest/googlemock/include" \
    "$googletest"/googletest/src/gtest-all.cc "$googletest"/googlemock/src/gmock-all.cc "$googletest"/googlemock/src/gmock_main.cc
  compile "$scratch/benchmark" "$flags" "${benchmark[@]}"
  nvcc "$scratch"/{library,tests,googletest}/*.o -lpthread -ldl -lrt -o "$folder/gpu_test"
  nvcc "$scratch"/{library,benchmark}/*.o -lpthread -ldl -lrt -o "$folder/transfer_bench"
  has_cublas || return 0
  compile "$scratch/engine" "$flags" "${engine[@]}"
  compile "$scratch/engine" "$test_flags" "${engine_tests[@]}"
  nvcc "$scratch"/{library,engine,googletest}/*.o -lcublas -Xlinker "-rpath=$(dirname "$(command -v nvcc)")/../lib64" -lpthread -ldl -lrt \
    -o "$folder/llama_gpu_test"
}

has_cublas() { echo 'int main() {}' | nvcc -x cu - -lcublas -o "$scratch/cublas_probe" 2>/dev/null; }

# check_gpu: the driver may be there without a GPU that answers. Quick, so that it comes before the build.
check_gpu() {
  nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidiactl ] || no_gpu "there is no driver"
  find_nvcc
  cat >"$scratch/probe.cu" <<'TEXT'
#include <cstdio>
int main() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  std::puts(status == cudaSuccess ? "the driver offers none" : cudaGetErrorString(status));
  return status == cudaSuccess && count > 0 ? 0 : 1;
}
TEXT
  nvcc "$scratch/probe.cu" -o "$scratch/probe"
  local reason
  reason=$("$scratch/probe") || no_gpu "$reason"
}

# sanitize PROGRAM FILTER OPTION...: only the memory accesses count, as the tests provoke errors of the runtime on purpose.
sanitize() {
  local program=$1 filter=$2
  shift 2
  echo "Running tests of the GPU under compute-sanitizer $*"
  compute-sanitizer "$@" --error-exitcode 1 "$scratch/$program" --gtest_brief=1 --gtest_filter="$filter"
}

run() {
  check_gpu
  build "$scratch"
  echo "Running the tests"
  MALLOC_PERTURB_=165 "$scratch/gpu_test"
  if [ -x "$scratch/llama_gpu_test" ]; then
    "$scratch/llama_gpu_test"
  else
    echo "cuBLAS is not installed; the tests of examples/llama were not run"
  fi
  if command -v compute-sanitizer >/dev/null; then
    sanitize gpu_test 'CudaCopyTest.*:*CudaEngineTest*' --tool memcheck --report-api-errors no
    # racecheck does not see that an mbarrier orders bulk copies into shared memory one after the other in a loop, and reports each as a hazard.
    sanitize gpu_test 'CudaCopyTest.*' --tool racecheck --kernel-name-exclude kns=copy_pages_by_bulk
    [ ! -x "$scratch/llama_gpu_test" ] || sanitize llama_gpu_test 'CudaProcessorTest.Computes*' --tool racecheck
  else
    echo "compute-sanitizer is not installed; the tests were not run under it"
  fi
  local name
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr -cs 'A-Za-z0-9\n' '-') || name=
  mkdir -p "$results"
  "$scratch/transfer_bench" --device cuda ${seconds:+--seconds "$seconds"} --json "$results/transfer-${name:-gpu}.json"
  echo "The figures are in $results/transfer-${name:-gpu}.json"
  [ -z "$programs" ] || run_programs
}

run_programs() {
  echo "Running the programs of $programs"
  HICACHE_BIN=$programs/bin HICACHE_LLAMA_LOGITS=$programs/tests/llama/llama-logits HICACHE_LIBRARY=$programs/c_abi/libhicache.so.1 \
    HICACHE_TREE_LIBRARY=$programs/c_tree/libhicache_tree.so.1 PYTHONDONTWRITEBYTECODE=1 python3 "$root/tests/gpu/programs_test.py"
}

case $what in
  pack) pack ;;
  build)
    find_nvcc
    build "$target"
    ;;
  run) run ;;
esac
