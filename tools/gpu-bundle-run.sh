#!/usr/bin/env bash
# Runs the GPU tests and benchmarks of this folder (tools/gpu-bundle.sh).
#
#   ./run.sh [--dir DIR] [--bytes SIZE] [--repeat N] [--out DIR]
#
# Benchmarks write to --dir (this folder), which should be on the disk to be measured and have space
# for four times SIZE (4GiB). The output of each part is in --out (results/), and one line states
# how it ended. Exit status: 0 if nothing failed, 1 if something failed, 2 for a wrong option.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$here bytes=4GiB repeat=5 out=$here/results
while (($#)); do
  case $1 in
    --dir) dir=$2 ;;
    --bytes) bytes=$2 ;;
    --repeat) repeat=$2 ;;
    --out) out=$2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift 2 || exit 2
done
python=${PYTHON:-python3}
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$here/python PYTHONDONTWRITEBYTECODE=1
mkdir -p "$out"
failed=0

# Run NAME COMMAND...: it passes if it ends with status 0, unless it has skipped every test: there is
# a GPU.
Run() {
  local name=$1 status=0
  shift
  timeout 1800 "$@" >"$out/$name.txt" 2>&1 </dev/null || status=$?
  if ((status)) || grep -q '^\[  PASSED  \] 0 tests' "$out/$name.txt"; then
    failed=1
    echo "$name: FAILED, status $status: $(grep . "$out/$name.txt" | tail -n 1)"
  else
    echo "$name: passed"
  fi
}

cat "$here/VERSION"
if ! gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1); then
  echo "everything is skipped: nvidia-smi finds no GPU: ${gpus##*$'\n'}"
  exit 0
fi
echo "$gpus" | tee "$out/gpus.txt"
# PyTorch's NCCL, if there is one.
nccl=$("$python" -c "import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], 'lib', 'libnccl.so.2'))" 2>/dev/null)
if [[ -f $nccl ]]; then export CAIRN_NCCL_LIBRARY=${CAIRN_NCCL_LIBRARY:-$nccl}; fi
for test in "$here"/bin/*_test; do Run "$(basename "$test")" "$test"; done
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
for tool in memcheck racecheck synccheck; do
  [[ -x $sanitizer ]] || { echo "$tool: skipped: no compute-sanitizer"; continue; }
  # The tests that start kernels; the others find nothing more.
  Run "$tool" "$sanitizer" --tool "$tool" --error-exitcode 99 "$here/bin/cuda_layer_gpu_test" \
    --gtest_filter='DeviceQueueTest.*:DigestTest.*'
done
for part in copies digest disk pages stall; do
  Run "bench-$part" "$here/bin/kv-bench" gpu --part "$part" --dir "$dir" --bytes "$bytes" \
    --repeat "$repeat" $(command -v fio >/dev/null && echo --fio)
done
if reason=$("$python" -c 'import torch, cairn' 2>&1); then
  Run python "$python" "$here/tests/run.py"
  Run compare "$python" "$here/bench/compare.py" --device cuda --only-states transformer \
    --repeat "$repeat" --dir "$dir" --out "$out/compare"
else
  echo "python: skipped: ${reason##*$'\n'}"
fi
exit $failed
