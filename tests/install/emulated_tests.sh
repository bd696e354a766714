#!/usr/bin/env bash
# Builds the unit tests of kv and core for aarch64, and runs them under QEMU's user-mode emulation.
# Needs .cache/wheel as tools/build-wheel.sh --arch aarch64 leaves it, and the packages googletest,
# mmdebstrap and qemu-user-static. docs/releasing.md lists what fails under emulation.
#
#   tests/install/emulated_tests.sh [PROGRAM...]     for example core_tensor_test; without any, all
#
# Prints how many tests of each program passed and failed. A program may use CAIRN_CPU_SECONDS (600)
# of processor time. Their output is in build-aarch64/log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$PWD/build-aarch64
mkdir -p "$work"/{log,stubs}
# The libraries are those of the wheel, and glibc is the compiler's: the folder of stubs is empty.
export CAIRN_WHEEL_ARCH=aarch64 CAIRN_LINK_STUBS=$work/stubs
export CMAKE_TOOLCHAIN_FILE=$PWD/tools/wheel/toolchain.cmake CMAKE_CXX_COMPILER_LAUNCHER=ccache
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
libraries=$(tools/wheel/dependencies.sh .cache/wheel)

# Configure SOURCE FOLDER OPTION...
Configure() { cmake -S "$1" -B "$work/$2" -G Ninja -DCMAKE_BUILD_TYPE=Release "${@:3}"; }
for library in googletest highway; do
  [[ ! -f $work/$library/complete ]] || continue
  source=/usr/src/googletest
  if [[ $library == highway ]]; then  # the cache has only its headers
    source=$work/highway-source
    rm -rf "$source"
    dpkg-source --no-check -x .cache/wheel/sources/highway_*.dsc "$source"
  fi
  Configure "$source" "$library" -DCMAKE_INSTALL_{PREFIX="$work/prefix",LIBDIR=lib} \
    -DBUILD_TESTING=OFF -DHWY_ENABLE_{CONTRIB,EXAMPLES,TESTS}=OFF
  cmake --build "$work/$library" --target install
  touch "$work/$library/complete"
done
[[ -d $work/root ]] ||
  mmdebstrap --arch=arm64 --variant=extract --include=libgcc-s1,libcurl4 bookworm "$work/root"

programs=("$@")
if (($# == 0)); then
  mapfile -t programs < <(grep -rhoP 'cairn_add_test\(\K\w+(?= LABEL unit)' tests/kv tests/core)
fi
# SKBUILD: nothing is installed. RocksDB needs zstd, which CMake may name before it.
Configure . tests -DSKBUILD=ON -DCAIRN_{ENABLE_PYTHON,ENABLE_CUDA,BUILD_TOOLS}=OFF \
  -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DCMAKE_UNITY_BUILD=ON \
  "-DCMAKE_PREFIX_PATH=$work/prefix;$libraries" \
  "-DCMAKE_CXX_STANDARD_LIBRARIES=$(echo "$PWD"/.cache/wheel/aarch64-zstd-*/lib/libzstd.a) -ldl"
cmake --build "$work/tests" --target "${programs[@]}"

failed=0
for program in "${programs[@]}"; do
  log=$work/log/$program.log
  status=0
  (ulimit -t "${CAIRN_CPU_SECONDS:-600}" && exec qemu-aarch64-static -L "$work/root" \
    "$work/tests/bin/$program") >"$log" 2>&1 </dev/null || status=$?
  echo "$program: $(grep -c '^\[       OK \]' "$log") passed," \
    "$(grep -cE '^\[  FAILED  \] .* ms\)$' "$log") failed, exit status $status"
  ((status == 0)) || failed=1
done
exit $failed
