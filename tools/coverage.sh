#!/usr/bin/env bash
# Measures which lines of kv/ and core/ the C++ tests execute.
#
#   tools/coverage.sh [CTEST OPTION...]    builds the preset coverage, runs its tests (without those
#                                          labelled slow or ceph, or those that the options select),
#                                          and prints the lines of each folder and of each file
#
# build-coverage/coverage.txt has the lines that were not executed, file by file. Exits with 1 if a
# test failed, or if fewer than 90 % of the lines of kv/ or of core/ were executed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
least=90
dir=build-coverage

tools/setup.sh
tools/build.sh coverage
find "$dir" -name '*.gcda' -delete
options=(-LE '^(slow|ceph)$')
if (($#)); then options=("$@"); fi
failed=0
ctest --preset coverage -j "$(nproc)" --progress "${options[@]}" </dev/null || failed=1

echo "== Line coverage"
# Only the objects of kv/ and core/: what tests execute of their headers by themselves does not count.
.venv/bin/gcovr --root . --object-directory "$dir" --filter kv/ --filter core/ -j "$(nproc)" \
  --gcov-ignore-errors=no_working_dir_found --gcov-ignore-parse-errors=negative_hits.warn \
  --txt "$dir/coverage.txt" --json-summary "$dir/coverage.json" "$dir/kv" "$dir/core"
.venv/bin/python - "$dir/coverage.json" "$least" <<'PYTHON' || failed=1
import json, pathlib, sys

files = json.loads(pathlib.Path(sys.argv[1]).read_text())["files"]
is_enough = True

def row(name: str, covered: int, total: int) -> float:
    percent = 100 * covered / total
    print(f"{percent:6.1f} %  {covered:6} of {total:6}  {name}")
    return percent

for folder in ("kv/", "core/"):
    inside = [file for file in files if file["filename"].startswith(folder)]
    covered = sum(file["line_covered"] for file in inside)
    is_enough &= row(folder, covered, sum(file["line_total"] for file in inside)) >= float(sys.argv[2])
print("The files with the most lines that were not executed:")
files.sort(key=lambda file: file["line_covered"] - file["line_total"])
for file in files[:15]:
    row(file["filename"], file["line_covered"], file["line_total"])
sys.exit(0 if is_enough else 1)
PYTHON
exit "$failed"
