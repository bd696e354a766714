#!/usr/bin/env bash
# Packs the GPU tests and benchmarks with all dependencies into one folder for a machine with a GPU.
#
#   tools/gpu-bundle.sh [OUTPUT]   replaces OUTPUT (build/gpu-bundle)
#
# The folder runs on Ubuntu 24.04 with an NVIDIA driver, CUDA 13 and PyTorch: copy it there and run
# its run.sh, which unpacks bundle.tar.gz first. The Python package is built for this checkout's
# Python and, if python3.12 with headers is found (or CAIRN_BUNDLE_PYTHON names one), for Ubuntu's.
# Complete output: build/gpu-bundle.log. See docs/gpu.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
output=${1:-build/gpu-bundle}
case $output in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) echo "gpu-bundle: unknown option $output (see --help)" >&2; exit 2 ;;
esac
jobs=${CAIRN_BUILD_JOBS:-$(nproc)}
log=$PWD/build/gpu-bundle.log
limit_kib=$((60 * 1024))

Die() { echo "gpu-bundle: $*" >&2; exit 1; }
# Runs a command with its output in the log; on failure, prints the end of the log.
Logged() {
  echo "+ $*" >>"$log"
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    tail -n 25 "$log" >&2
    Die "failed: $* (complete log: $log)"
  fi
}

mkdir -p build
: >"$log"
[[ ! -e $output || -f $output/run.sh ]] || Die "$output exists and is not a bundle"
[[ -f build/build.ninja ]] || Logged cmake --preset release
# Some targets do not exist without a CUDA toolkit or without nccl.h.
targets=$(cmake --build build --target help)
HasTarget() { grep -qE "^$1:" <<<"$targets"; }
HasTarget cuda_layer_gpu_test || Die "this build has no CUDA layer: no CUDA 13 toolkit was found"
programs=(cuda_layer_gpu_test cuda_small_budget_gpu_test kv-bench)
if HasTarget nccl_gpu_test; then programs+=(nccl_gpu_test); fi
wanted=("${programs[@]}")
if HasTarget cairn_python; then wanted+=(cairn_python); fi
echo "gpu-bundle: building"
Logged cmake --build build -j "$jobs" --target "${wanted[@]}"

# Python -------------------------------------------------------------------------------------------
# An extension module works with one version of Python only. Ubuntu 24.04 has 3.12.
FindOtherPython() {
  local candidate
  for candidate in ${CAIRN_BUNDLE_PYTHON:-} python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do
    if "$candidate" -c 'import os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info[:2] == (3, 11) or not os.path.exists(header))' >>"$log" 2>&1; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}
extensions=(build/python/cairn/_cairn.*.so)
if [[ ! -f ${extensions[0]} ]]; then
  extensions=()
elif python=$(FindOtherPython); then
  echo "gpu-bundle: building the Python package for $("$python" --version)"
  # nanobind's sources are the same for all versions; uses those of this checkout's environment.
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  Logged env PYTHONPATH="$site" cmake --preset release -B build/bundle-python \
    -DPython_EXECUTABLE="$python" -DCAIRN_BUILD_TESTS=OFF -DCAIRN_BUILD_TOOLS=OFF
  Logged cmake --build build/bundle-python -j "$jobs" --target _cairn
  extensions+=(build/bundle-python/python/cairn/_cairn.*.so)
else
  echo "gpu-bundle: no python3.12 with headers: the Python package is for 3.11 only"
fi

# The contents of bundle.tar.gz --------------------------------------------------------------------
contents=$(mktemp -d build/gpu-bundle-contents.XXXXXX)
trap 'rm -rf "$contents"' EXIT
mkdir "$contents"/{bin,lib,python,bench}
for program in "${programs[@]}"; do strip -o "$contents/bin/$program" "build/bin/$program"; done
if ((${#extensions[@]})); then
  cp -r build/python/cairn "$contents/python/"
  mkdir "$contents/tests"
  cp tests/python/gpu/*.py "$contents/tests/"
  find "$contents/python" \( -name '__pycache__' -o -name '*.so' \) -prune -exec rm -rf {} +
  for extension in "${extensions[@]}"; do
    strip -o "$contents/python/cairn/$(basename "$extension")" "$extension"
  done
fi
cp bench/compare_gpu.py "$contents/bench/"
cp tools/gpu_bundle/run_bundle.py "$contents/"

# Copies every library that the programs need, except for those of the system and the driver, which
# must be those of the host.
host_libraries='^(linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libstdc\+\+|libgcc_s|libcuda|libnvidia)'
ldd "$contents"/bin/* "${extensions[@]}" 2>>"$log" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r name path; do
    [[ $name =~ $host_libraries ]] || cp -L "$path" "$contents/lib/$name"
  done
if ldd "$contents"/bin/* 2>&1 | grep -q 'not found'; then Die "a library of the programs is missing"; fi

{
  echo "Cairn $(git describe --always --dirty 2>/dev/null || echo '(no git)'), packed $(date -u +%Y-%m-%dT%H:%MZ)"
  echo "Programs: ${programs[*]}"
  echo "Python extensions: ${extensions[*]##*/}"
} >"$contents/VERSION"

# The folder ---------------------------------------------------------------------------------------
# Compressed, because most of the same code is linked into each program and extension. gzip, because
# Python's standard library reads it on every host, which may not have zstd.
rm -rf "$output"
mkdir -p "$output"
tar -C "$contents" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w,a+rX -cf - . |
  gzip -n >"$output/bundle.tar.gz"
(cd "$output" && sha256sum bundle.tar.gz >bundle.tar.gz.sha256)
cp tools/gpu_bundle/{run.sh,start.py} "$contents/VERSION" "$output/"
size_kib=$(du -sk "$output" | cut -f 1)
unpacked_kib=$(du -sk "$contents" | cut -f 1)
((size_kib < limit_kib)) || Die "$output has $size_kib KiB, more than the limit of $limit_kib"
echo "gpu-bundle: $output, $((size_kib / 1024)) MiB, and $((unpacked_kib / 1024)) MiB more where it" \
  "runs; on the GPU machine: $(basename "$output")/run.sh"
