#!/usr/bin/env bash
# Tests and measures the CUDA layer on a machine with a GPU, without a network or a compiler there.
#
#   tools/gpu_check.sh pack [--simulated] [DIR]      packs programs, tests and libraries into DIR
#                                                    (build/gpu-check) on the build machine
#   DIR/gpu_check.sh run tests|figures [OUT] [WORK]  runs them on the GPU machine: the results go to
#                                                    OUT/summary.txt and OUT/log.txt (results/),
#                                                    measurements write below WORK (DIR), which
#                                                    should be on the disk to be measured
#
# `run tests` takes 4 minutes, `run figures` 6. Each step has a limit, and a step that fails does not
# stop the others. Exit status: 0 if nothing failed, 1 if something failed, 2 for a wrong option.
# --simulated packs the programs that are linked with the simulated runtime, so that all of this can
# be tried without a GPU. See docs/gpu.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

Usage() {
  sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit "$1"
}

# --- on the build machine

# The stable ABI makes one package for every Python; only the kernels for compute capability 9.0
# keep the programs small.
Pack() {
  local simulated=
  if [[ ${1:-} == --simulated ]]; then simulated=1 && shift; fi
  local to=${1:-build/gpu-check}
  cd "$here/.."
  local build=build-gpu package=cairn_python folder=build-gpu/python log=build-gpu.log
  local -A programs=([cuda_layer_test]=cuda_layer_gpu_test [nccl_test]=nccl_gpu_test
    [cuda_small_budget_test]=cuda_small_budget_gpu_test [kv-bench]=kv-bench
    [fake_s3_server]=fake_s3_server)
  local options=(-DSKBUILD_SABI_VERSION=3.10 -DCMAKE_CUDA_ARCHITECTURES=90-real)
  if [[ $simulated ]]; then
    build=build package=cairn_python_simulated folder=build/python-simulated options=()
    programs+=([cuda_layer_test]=cuda_layer_test [nccl_test]=nccl_communicator_test
      [cuda_small_budget_test]=cuda_small_budget_test [kv-bench]=kv_bench_on_simulation)
  fi
  { cmake --preset release -B $build "${options[@]}" &&
    cmake --build $build --target $package "${programs[@]}"; } >$log 2>&1 </dev/null ||
    { grep -E -A 12 'error:|^FAILED|CMake Error' $log >&2; exit 1; }

  rm -rf "$to"
  mkdir -p "$to"/{bin,lib,lib-curl,python,bench}
  local name
  for name in "${!programs[@]}"; do strip -o "$to/bin/$name" "$build/bin/${programs[$name]}"; done
  cp -rL "$folder/cairn" "$to/python/"
  strip "$to"/python/cairn/_cairn.*.so
  cp -r tests/python/gpu "$to/tests"
  cp -r bench/gpu.py bench/common "$to/bench/"
  cp tools/gpu_check.sh "$to/"
  if [[ $simulated ]]; then
    cp -r tests/python/simulated_cuda "$to/tests/simulated"
    cp -L $folder/*.so "$to/python/"
    touch "$to/SIMULATED"
  else
    # The binding library for the machine's Python.
    local backend
    backend=$(mktemp -d)
    .venv/bin/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
      --platform manylinux_2_28_x86_64 --dest "$backend" nanobind-backend >>$log 2>&1
    .venv/bin/python -m zipfile -e "$backend"/*.whl "$to/python"
    rm -r "$backend"
  fi
  git describe --always --dirty >"$to/VERSION" 2>/dev/null || echo unknown >"$to/VERSION"

  # Every library except for the libraries of the system and the driver, which must come from the
  # machine.
  local host='^(linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libstdc\+\+|libgcc_s|libcuda|libnvidia|libcairn_simulated)'
  local path
  ldd "$to"/bin/* "$to"/python/cairn/*.so | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r name path; do [[ $name =~ $host ]] || cp -L "$path" "$to/lib/$name"; done
  # libcurl is opened at run time. Used only where the machine has none.
  ldd "$(ldconfig -p | awk '/libcurl.so.4 / { print $NF; exit }')" |
    awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' |
    while read -r name path; do [[ $name =~ $host ]] || cp -L "$path" "$to/lib-curl/$name"; done
  cp -L "$(ldconfig -p | awk '/libcurl.so.4 / { print $NF; exit }')" "$to/lib-curl/libcurl.so.4"
  find "$to" -name __pycache__ -prune -exec rm -rf {} +
  echo "gpu_check: $to, $(tar cz "$to" 2>/dev/null | wc -c | awk '{ print int($1 / 1048576) }') MiB compressed"
}

# --- on the GPU machine

# Step NAME SECONDS COMMAND...: it fails if it ends with another status than 0 or has skipped every
# test, because there is a GPU.
Step() {
  local name=$1 limit=$2 status=0 begin=$SECONDS
  shift 2
  printf '\n=== %s\n' "$name" >>"$out/log.txt"
  [[ ! -f $here/SIMULATED ]] || limit=$((10 * limit))
  timeout --kill-after=5 "$limit" "$@" >"$out/step.txt" 2>&1 </dev/null || status=$?
  cat "$out/step.txt" >>"$out/log.txt"
  local took=$((SECONDS - begin)) failed_before=$failed
  failed=1
  if ((status == 124 || status == 137)); then
    echo "$name: FAILED, not done after $limit s" >>"$out/summary.txt"
  elif ((status)) || grep -q '^\[  PASSED  \] 0 tests' "$out/step.txt"; then
    echo "$name: FAILED, status $status ($took s): $(grep . "$out/step.txt" | tail -n 1)" >>"$out/summary.txt"
    grep -E '^(ERROR|FAIL):|FAILED  \]|Error:|MISSED' "$out/step.txt" | head -n 12 | cut -c1-200 | sed 's/^/    /' >>"$out/summary.txt" || true
  else
    failed=$failed_before
    echo "$name: passed ($took s)" >>"$out/summary.txt"
  fi
  grep -E '^ratio:|of the step;|^skipped ' "$out/step.txt" | sed 's/^/    /' >>"$out/summary.txt" || true
  rm -f "$out/step.txt"
}

PythonTests() {  # NAME SECONDS MODULE...
  local name=$1 limit=$2
  shift 2
  if [[ -f $here/SIMULATED ]]; then
    local classes="${*#test_gpu_}"
    Step "$name" "$limit" "$python" -m pytest -q -p no:cacheprovider -p simulated_machine \
      -o python_files='*_cases.py' -k "${classes// / or }" "$here/tests/simulated/gpu_cases.py"
  else
    Step "$name" "$limit" "$python" "$here/tests/run.py" "$@"
  fi
}

Tests() {
  # The modules run in separate processes: after an error of the device, a process is lost.
  Step "CUDA layer" 60 "$here/bin/cuda_layer_test"
  PythonTests "Python: saves, loads, DCP" 60 test_gpu_saves test_gpu_loads test_gpu_dcp
  Step "NCCL, one rank" 60 "$here/bin/nccl_test"
  PythonTests "Python: memory and bucket" 40 test_gpu_places
  Step "memcheck" 60 "${sanitizer[@]}" --tool memcheck --report-api-errors no --error-exitcode 99 \
    "$here/bin/cuda_layer_test" --gtest_filter='DeviceQueueTest.*:DigestTest.*'
  if [[ ! -f $here/SIMULATED ]]; then  # PyTorch's own kernels
    PythonTests "Python: training, killed and resumed" 60 test_gpu_training
    PythonTests "Python: graphs, 4 GiB" 60 test_gpu_allocator
    PythonTests "Python: full memory" 60 test_gpu_full_memory
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTORCH_ALLOC_CONF=expandable_segments:True \
      PythonTests "Python: expandable segments" 60 test_gpu_saves test_gpu_loads
  fi
  Step "CUDA layer, small budget" 60 "$here/bin/cuda_small_budget_test"
  Step "copies" 60 "$here/bin/kv-bench" gpu --part copies --dir "$work" --bytes "$bytes" --repeat 5
  Step "digests" 30 "$here/bin/kv-bench" gpu --part digest --dir "$work" --bytes "$bytes" --repeat 9
  for tool in racecheck synccheck; do
    Step "$tool" 40 "${sanitizer[@]}" --tool "$tool" --error-exitcode 99 \
      "$here/bin/cuda_layer_test" --gtest_filter='DigestTest.*'
  done
}

Figures() {
  local gpu=("$here/bin/kv-bench" gpu --dir "$work") bench=("$python" "$here/bench/gpu.py" --dir "$work")
  Step "copies" 60 "${gpu[@]}" --part copies --bytes "$bytes" --repeat 9
  Step "digests" 30 "${gpu[@]}" --part digest --bytes "$bytes" --repeat 15
  if [[ ! -f $here/SIMULATED ]]; then
    Step "changed pages" 60 "${bench[@]}" pages --repeat 3
    Step "stall and dcp" 90 "${bench[@]}" stall --repeat 3
    Step "loads" 100 "${bench[@]}" loads --repeat 2
    # 45 % of the memory: what is staged has to fit into page-locked memory.
    Step "stall, large model" 120 "${bench[@]}" stall --repeat 1 --abandon --peers cairn --bytes \
      "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | awk 'NR == 1 { printf "%d", $1 * 471859 }')"
    Step "loads of 20,000 tensors" 60 "${bench[@]}" loads --state experts --bytes 2e9 --repeat 2
  fi
}

Run() {
  local what=${1:-}
  [[ $what == tests || $what == figures ]] || Usage 2 >&2
  out=${2:-$here/results} work=${3:-$here} failed=0 bytes=4GiB
  python=${PYTHON:-python3}
  mkdir -p "$out" "$work"
  : >"$out/summary.txt" && : >"$out/log.txt"
  if [[ -f $here/SIMULATED ]]; then
    bytes=2MiB
    sanitizer=("$here/pass_by")  # the simulation has no compute-sanitizer
    printf '#!/bin/sh\nwhile [ "${1#/}" = "$1" ]; do shift; done\nexec "$@"\n' >"$here/pass_by"
    chmod +x "$here/pass_by"
  else
    sanitizer=("$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)")
    if ! nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader \
      >"$out/step.txt" 2>&1; then
      echo "everything is skipped: nvidia-smi finds no GPU: $(tail -n 1 "$out/step.txt")" | tee "$out/summary.txt"
      exit 0
    fi
    cat "$out/step.txt" >>"$out/summary.txt"
  fi
  if [[ ! -f $here/SIMULATED ]]; then  # there, they find the simulated libraries of the build
    export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    ldconfig -p | grep -q 'libcurl.so.4 ' || LD_LIBRARY_PATH+=:$here/lib-curl
  fi
  export PYTHONPATH=$here/python:$here/tests:$here/tests/simulated PYTHONDONTWRITEBYTECODE=1
  export PYTHONUNBUFFERED=1 CAIRN_FAKE_S3_SERVER=$here/bin/fake_s3_server
  { cat "$here/VERSION"; nproc; free -g; df -h "$work" /dev/shm; uname -r
    "$python" -VV; "$python" -c 'import torch; print("torch", torch.__version__)'; } >>"$out/log.txt" 2>&1 || true
  # PyTorch's NCCL, if there is one.
  local nccl
  nccl=$("$python" -c "import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], 'lib', 'libnccl.so.2'))" 2>/dev/null) || true
  if [[ -f $nccl && ! -f $here/SIMULATED ]]; then export CAIRN_NCCL_LIBRARY=${CAIRN_NCCL_LIBRARY:-$nccl}; fi
  if [[ $what == tests ]]; then Tests; else Figures; fi
  cat "$out/summary.txt"
  exit $failed
}

case ${1:-} in
  pack) shift && Pack "$@" ;;
  run) shift && Run "$@" ;;
  -h | --help) Usage 0 ;;
  *) Usage 2 >&2 ;;
esac
