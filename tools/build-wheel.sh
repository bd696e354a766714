#!/usr/bin/env bash
# Builds dist/cairn_ckpt-VERSION-cp310-abi3-manylinux_2_28_ARCH.whl: the package, the programs, and the
# libraries that they need, for every Linux with glibc 2.28 or newer; and
# dist/cairn_reader-VERSION-py3-none-any.whl, the reader in pure Python. Runs on Debian 12 on x86-64, and
# first installs or builds what is missing: sources are Debian's and PyPI's, with pinned SHA-256 sums
# (tools/wheel), and what is built of them is kept in .cache/wheel.
#
#   tools/build-wheel.sh [--arch x86_64|aarch64] [--python PYTHON] [DIR]
#
#   DIR                where the wheels are written (dist/). That for aarch64 has the stub (_cairn.pyi) of
#                      the one for x86_64 that is there, which is built first if there is none
#   --python PYTHON    a free-threaded Python 3.13 or newer: makes cairn_ckpt-VERSION-cp313-cp313t-... of
#                      x86-64, with the binding library in the module. Such a Python has no stable ABI
#
# Two builds of a commit are equal byte by byte, in whatever folder: nothing in a wheel depends on the
# time (SOURCE_DATE_EPOCH; by default that of the commit) or on paths.
#
# Complete output: build-wheel/build.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
Die() { echo "build-wheel: $*" >&2; exit 2; }
arch=x86_64
python=
abi=abi3
while [[ ${1:-} == --* ]]; do
  case $1 in
    --arch) arch=$2 ;;
    --python) python=$(command -v "$2") || Die "there is no Python $2" ;;
    *) Die "unknown option $1" ;;
  esac
  shift 2
done
dist=${1:-dist}
[[ $arch == x86_64 || $arch == aarch64 ]] || Die "unknown architecture $arch"
if [[ $python ]]; then
  [[ $arch == x86_64 ]] || Die "wheels of free-threaded Pythons are made for x86_64 only"
  abi=$("$python" -c 'import sys, sysconfig
print("cp%d%d%s" % (*sys.version_info[:2], "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))))')
  [[ $abi == *t ]] || Die "$python is not free-threaded: the wheel of the stable ABI is for it"
fi
if [[ $arch != x86_64 ]]; then  # before the folder build-wheel, which each build replaces
  compgen -G "$dist/cairn_ckpt-*-abi3-*x86_64.whl" >/dev/null || tools/build-wheel.sh "$dist"
fi
tools/setup.sh "--wheel=$arch"
cache=$PWD/.cache/wheel
rm -rf build-wheel
mkdir -p build-wheel "$dist" "$cache"
log=build-wheel/build.log
: >"$log"

Logged() {
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    grep -E -A 12 '(error:|^FAILED|CMake Error)' "$log" | head -n 60 >&2 || tail -n 40 "$log" >&2
    echo "build-wheel: failed: $* (complete log: $log)" >&2
    exit 1
  fi
}
# Key FILE...: a name for what is made of these files.
Key() { cat "$@" | sha256sum | cut -c 1-12; }

venv=$cache/venv-$(Key tools/wheel/requirements.txt)
if [[ ! -f $venv/complete ]]; then
  Logged /usr/bin/python3 -m venv --clear "$venv"
  Logged "$venv/bin/pip" install --no-deps --require-hashes -r tools/wheel/requirements.txt
  touch "$venv/complete"
fi
export PATH=$venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
stubs=$cache/$arch-stubs-$(Key tools/wheel/{link_stubs.sh,compatibility.c,requirements-stubs.txt})
[[ -d $stubs ]] || Logged tools/wheel/link_stubs.sh "$arch" "$stubs"
cuda=$cache/$arch-cuda-$(Key tools/wheel/{cuda_toolkit.sh,requirements-cuda*.txt})
[[ -d $cuda ]] || Logged tools/wheel/cuda_toolkit.sh "$arch" "$cuda"
export CAIRN_WHEEL_ARCH=$arch CAIRN_LINK_STUBS=$stubs
libraries=$(tools/wheel/dependencies.sh "$cache")

if [[ $arch != x86_64 ]]; then
  # Of a module that cannot run here: the stub is that of x86_64, and so are Python's headers, of which
  # the stable ABI uses nothing that differs.
  mkdir -p "build-wheel/include/$arch-linux-gnu"
  ln -s /usr/include/x86_64-linux-gnu/python3.11 "build-wheel/include/$arch-linux-gnu/"
  Logged python3 -m zipfile -e "$dist"/cairn_ckpt-*-abi3-*x86_64.whl build-wheel/native
  export CAIRN_MODULE_STUB=$PWD/build-wheel/native/cairn/_cairn.pyi
  flags="-isystem $PWD/build-wheel/include"
fi
# Also of the relative paths that ccache makes.
map="-ffile-prefix-map=$PWD/= -ffile-prefix-map=$(realpath "$cache")/=.cache/wheel/ -ffile-prefix-map=../../="
export CXXFLAGS="$map ${flags:-}" CUDAFLAGS="-Xcompiler=${map// / -Xcompiler=}"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 946684800)}
export SOURCE_DATE_EPOCH
export LDFLAGS=-Wl,--sort-section=name  # similar functions next to each other: 1 % smaller
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
builder=pip
if [[ $python ]]; then
  free=$cache/venv-$abi-$(Key tools/wheel/requirements.txt "$python")
  if [[ ! -f $free/complete ]]; then
    Logged "$python" -m venv --clear "$free"
    # What builds, all of it pure Python.
    grep -E '^(nanobind|scikit-build-core|packaging|pathspec)==' tools/wheel/requirements.txt \
      >build-wheel/requirements.txt
    Logged "$free/bin/pip" install --no-deps --require-hashes -r build-wheel/requirements.txt
    touch "$free/complete"
  fi
  builder=$free/bin/pip
fi
export CMAKE_TOOLCHAIN_FILE=$PWD/tools/wheel/toolchain.cmake CMAKE_PREFIX_PATH=${libraries//;/:}
export _PYTHON_HOST_PLATFORM=linux-$arch CUDAToolkit_ROOT=$cuda CUDACXX=$cuda/bin/nvcc CUDAHOSTCXX=$arch-linux-gnu-g++
Logged "$builder" wheel --verbose --no-deps --no-build-isolation \
  --config-settings wheel.reproducible=true --wheel-dir build-wheel/raw .
Logged grep -q 'building the CUDA layer' "$log"
Logged tools/wheel/check_symbols.sh build-wheel/raw/cairn_ckpt-*.whl
if [[ $python ]]; then
  Logged python3 tools/wheel/drop_requirement.py build-wheel/raw/cairn_ckpt-*.whl nanobind-backend
fi
# Renames the wheel to the oldest system that has its symbols and libraries. --plat is not possible for
# another processor.
rm -f "$dist"/cairn_ckpt-*-"$abi"-*"$arch".whl
Logged auditwheel repair --only-plat --zip-compression-level 9 \
  --wheel-dir "$dist" build-wheel/raw/cairn_ckpt-*.whl
rm -f "$dist"/cairn_reader-*.whl
Logged pip wheel --no-deps --no-build-isolation --wheel-dir "$dist" tools/reference_reader
wheel=$(echo "$dist"/cairn_ckpt-*-"$abi"-*"$arch".whl)
[[ $wheel == *-manylinux_2_28_$arch.whl ]] ||
  { echo "build-wheel: $wheel does not run with glibc 2.28" >&2; exit 1; }
echo "build-wheel: $wheel, $(du -h "$wheel" | cut -f 1) (${SECONDS} s)"
