#!/usr/bin/env bash
# Creates again, with the programs of BUILD (build/ if it is absent), what contains bytes of the
# format: the golden stores, the hex dumps of docs/format/, and the first inputs of the fuzzers. For
# changes of a format that is not released; reads what remains to be done by hand.
#
#   tests/golden/regenerate.sh [BUILD]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
python=${CAIRN_PYTHON:-.venv/bin/python}
cmake --build "$build" -j 2 --target cairn_make_golden cairn_make_fuzz_corpus \
  cairn_fixed_environment_preload cairn_python

before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
mv tests/golden/v3* "$before"
"$build"/bin/cairn_make_golden tests/golden/v3
LD_PRELOAD=$PWD/$build/tests/golden/libcairn_fixed_environment_preload.so PYTHONHASHSEED=0 \
  PYTHONPATH=$build/python "$python" tests/golden/make_golden.py
"$build"/bin/cairn_make_fuzz_corpus tests/fuzz/corpus tests/golden/v3-*/
"$python" tests/style/test_format_examples.py --write "$before/v3-example"
