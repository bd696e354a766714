#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every test that this machine can run.
#
#   tools/test.sh                  C++ tests (except those labelled slow), Python tests, the
#                                  documentation and its examples, and instruction counts
#                                  compared with their baselines
#   tools/test.sh --all            also the slow tests
#   tools/test.sh --sanitizers     also the C++ tests of units and of faults, and the programs on
#                                  damaged and hostile stores, under ASan+UBSan and under TSan
#   tools/test.sh --clang          also a build with Clang, which checks the thread annotations and
#                                  that sources do not rely on precompiled headers
#   tools/test.sh --fuzz           also every fuzzer for ten seconds; without this option, only if
#                                  Clang and libFuzzer are installed
#   tools/test.sh --ceph           also the tests on a Ceph cluster, which they start: stores in
#                                  RADOS, and on two mounts of a CephFS (root)
#   tools/test.sh --integrations   also the tests with libraries of others, which it installs into
#                                  .venv (1 GB)
#
# Runs everything even if something fails; the exit status is 0 only if nothing failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A with=([all]="" [sanitizers]="" [clang]="" [fuzz]="" [ceph]="" [integrations]="")
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n '2,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  esac
  if [[ $argument != --* || ! -v with[${argument#--}] ]]; then
    echo "test: unknown option $argument (see --help)" >&2
    exit 2
  fi
  with[${argument#--}]=1
done

setup_options=(--docs --browser)
for option in clang fuzz ceph integrations; do
  if [[ ${with[$option]} ]]; then setup_options+=("--$option"); fi
done
tools/setup.sh "${setup_options[@]}"
tools/build.sh release
export CAIRN_PYTHON=$PWD/.venv/bin/python  # which kv-admin starts for files of torch
export PYTHONDONTWRITEBYTECODE=  # otherwise each of many processes compiles what it imports

# More than one test per core, because many tests wait for disks and for other processes.
at_once=$((2 * $(nproc)))
ctest_options=(-j "$at_once" --progress --schedule-random)
seed=${CAIRN_TEST_SEED:-$RANDOM}  # of the order of the Python tests
pytest_options=("--randomly-seed=$seed" --durations=10)
excluded_labels=()
if [[ ! ${with[all]} ]]; then
  excluded_labels+=(slow)
  pytest_options+=(-m "not slow")
fi
if [[ ! ${with[ceph]} ]]; then excluded_labels+=(ceph); fi
if ((${#excluded_labels[@]})); then
  ctest_options+=(-LE "$(IFS='|'; echo "^(${excluded_labels[*]})$")")
fi
failed=()

# Section: prints what begins, and minutes and seconds since the start.
Section() { printf '== %s (at %d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

if [[ ${with[clang]} ]]; then
  Section "Build with Clang"
  tools/build.sh clang || failed+=("clang build")
fi

if [[ ${with[sanitizers]} ]]; then
  for preset in asan tsan; do
    Section "C++ tests of units and of faults, $preset"
    if ! tools/build.sh "$preset"; then
      failed+=("$preset build")
      continue
    fi
    ctest --preset "$preset" "${ctest_options[@]}" -L '^(unit|fault)$' </dev/null ||
      failed+=("$preset")
    Section "Programs, $preset"
    tools/sanitized_programs.sh "$preset" </dev/null || failed+=("$preset programs")
  done
fi

# HasLibFuzzer: whether clang++-19 can link a fuzzer.
HasLibFuzzer() {
  command -v clang++-19 >/dev/null &&
    [[ -f $(clang++-19 -print-file-name="libclang_rt.fuzzer-$(uname -m).a") ]]
}
if [[ ${with[fuzz]} ]] || HasLibFuzzer; then
  Section "Fuzzers, ten seconds each"
  tools/fuzz.sh 10 || failed+=(fuzz)
fi

Section "C++ tests"
ctest --preset release "${ctest_options[@]}" </dev/null || failed+=(ctest)

Section "Python tests, in the order of CAIRN_TEST_SEED=$seed"
.venv/bin/python -m pytest -q -n "$at_once" --maxprocesses 8 --dist worksteal "${pytest_options[@]}" \
  tests/matrix tests/python tests/tools tests/style tests/install tests/bench tests/docs tests/first_hour \
  </dev/null || failed+=(pytest)

if [[ ${with[integrations]} ]]; then
  Section "Tests with libraries of others"
  .venv/bin/python -m pytest -q "${pytest_options[@]}" tests/integrations </dev/null ||
    failed+=("integrations")
fi

if [[ ${with[ceph]} ]]; then
  Section "Tests on a shared file system and in RADOS"
  .venv/bin/python -m pytest -q "${pytest_options[@]}" tests/shared_fs tests/rados </dev/null ||
    failed+=("ceph")
fi

Section "Regression benchmark"
.venv/bin/python bench/regression.py </dev/null || failed+=(regression)

Section "The end"
if ((${#failed[@]})); then
  echo "test: FAILED: ${failed[*]}" >&2
  exit 1
fi
