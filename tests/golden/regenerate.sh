#!/usr/bin/env bash
# Creates again, with the programs of BUILD (build/ if it is absent), what contains bytes of the
# format: the golden stores, the hex dumps of docs/format/, and the first inputs of the fuzzers. For
# changes of a format that is not released; reads what remains to be done by hand.
#
#   tests/golden/regenerate.sh [BUILD]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
cmake --build "$build" --target cairn_make_golden cairn_make_fuzz_corpus -- -j 2

before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
mv tests/golden/v3* "$before"
"$build"/bin/cairn_make_golden tests/golden/v3
"$build"/bin/cairn_make_fuzz_corpus tests/fuzz/corpus
"${CAIRN_PYTHON:-.venv/bin/python}" tests/style/test_format_examples.py --write "$before/v3-example"
