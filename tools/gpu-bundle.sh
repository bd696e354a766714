#!/usr/bin/env bash
# Packs the GPU tests and benchmarks, with the libraries that they need, for a machine with a GPU.
#
#   tools/gpu-bundle.sh [ARCHIVE]   replaces ARCHIVE (build/gpu-bundle.tar.gz)
#
# Unpack it on a machine with an NVIDIA driver for CUDA 13, and run gpu-bundle/run.sh. See
# docs/gpu.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
archive=${1:-build/gpu-bundle.tar.gz}
case $archive in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) echo "gpu-bundle: unknown option $archive (see --help)" >&2; exit 2 ;;
esac
[[ -f build/build.ninja ]] || cmake --preset release
# Without a CUDA toolkit, nccl.h or Python, some targets do not exist.
available=$(cmake --build build --target help)
programs=()
for name in cuda_layer_gpu_test cuda_small_budget_gpu_test nccl_gpu_test kv-bench; do
  if grep -q "^$name:" <<<"$available"; then programs+=("$name"); fi
done
[[ " ${programs[*]} " == *" cuda_layer_gpu_test "* ]] ||
  { echo "gpu-bundle: this build has no CUDA layer: no CUDA 13 toolkit was found" >&2; exit 1; }
targets=("${programs[@]}")
if grep -q '^cairn_python:' <<<"$available"; then targets+=(cairn_python); fi
tools/build.sh release "${targets[@]}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bundle=$folder/gpu-bundle
mkdir -p "$bundle"/{bin,lib,bench}
for name in "${programs[@]}"; do strip -o "$bundle/bin/$name" "build/bin/$name"; done
extensions=(build/python/cairn/_cairn.*.so)
if [[ -f ${extensions[0]} ]]; then
  mkdir "$bundle/python"
  cp -rL build/python/cairn "$bundle/python/"
  strip "$bundle"/python/cairn/_cairn.*.so
  cp -r tests/python/gpu "$bundle/tests"
fi
cp -r bench/compare.py bench/common "$bundle/bench/"
cp tools/gpu-bundle-run.sh "$bundle/run.sh"
git describe --always --dirty >"$bundle/VERSION" 2>/dev/null || echo unknown >"$bundle/VERSION"

# Every library except for those of the system and the driver, which must be those of the machine.
host='^(linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libstdc\+\+|libgcc_s|libcuda|libnvidia)'
ldd "$bundle"/bin/* "${extensions[@]}" 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r name path; do [[ $name =~ $host ]] || cp -L "$path" "$bundle/lib/$name"; done
find "$bundle" -name __pycache__ -prune -exec rm -rf {} +
tar -C "$folder" -czf "$archive" gpu-bundle
echo "gpu-bundle: $archive, $(du -m "$archive" | cut -f 1) MiB"
