#!/usr/bin/env bash
# Runs the programs of a sanitizer's build on damaged, forged, hostile and intact stores.
#
#   tools/sanitized_programs.sh asan|tsan [PYTEST_ARGUMENT...]
#
# Requires that the presets release (for the Python package, which creates the stores) and asan or
# tsan are built. A report of a sanitizer ends a program with status 99, which is none of ours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
support=$PWD/tests/support
export CAIRN_BIN_DIR=$PWD/build-$preset/bin
export PYTHONPATH=$PWD/build/python
export ASAN_OPTIONS=exitcode=99 UBSAN_OPTIONS=exitcode=99:print_stacktrace=1
export LSAN_OPTIONS=exitcode=99:print_suppressions=0:suppressions=$support/lsan_suppressions.txt
export TSAN_OPTIONS=exitcode=99:die_after_fork=0:suppressions=$support/tsan_suppressions.txt
if (($# == 0)); then
  for name in damaged_verbs damage forged hostile repair streams kv_dump kv_admin copy compact \
      edit_verbs merge_verb dcp_import torch_files serve live_store report; do
    set -- "$@" "tests/tools/test_$name.py"
  done
fi
exec .venv/bin/python -m pytest -q -n "$(nproc)" --dist worksteal -m "not slow" "$@"
