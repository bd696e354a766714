#!/usr/bin/env bash
# Creates the golden stores that do not exist yet, with the programs of BUILD (build/ if it is
# absent), and adds the SHA-256 of their files to SHA256SUMS. A store that exists is never created
# again: README.md.
#
#   tests/golden/add.sh [BUILD]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
python=${CAIRN_PYTHON:-.venv/bin/python}
cmake --build "$build" -j 2 --target cairn_make_golden cairn_fixed_environment_preload \
  cairn_python kv-admin

"$build"/bin/cairn_make_golden tests/golden/v3
LD_PRELOAD=$PWD/$build/tests/golden/libcairn_fixed_environment_preload.so PYTHONHASHSEED=0 \
  PYTHONPATH=$build/python "$python" tests/golden/make_golden.py "$build"
cd tests/golden
for file in $(find v3-* -type f | LC_ALL=C sort); do
  grep -q "  $file\$" SHA256SUMS || sha256sum "$file" >> SHA256SUMS
done
LC_ALL=C sort -k 2 -o SHA256SUMS SHA256SUMS
