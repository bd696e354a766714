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
for folder in kv core; do
  .venv/bin/gcovr --root . --object-directory "$dir" --filter "$folder/" -j "$(nproc)" \
    --gcov-ignore-parse-errors=negative_hits.warn \
    --txt "$dir/coverage-$folder.txt" --json-summary "$dir/coverage-$folder.json" \
    --fail-under-line "$least" "$dir" || failed=1
done
cat "$dir"/coverage-kv.txt "$dir"/coverage-core.txt >"$dir/coverage.txt"
.venv/bin/python - "$dir" <<'PYTHON'
import json, pathlib, sys

def row(name: str, covered: int, total: int) -> None:
    print(f"{100 * covered / total:6.1f} %  {covered:6} of {total:6}  {name}")

files = []
for folder in ("kv", "core"):
    summary = json.loads(pathlib.Path(sys.argv[1], f"coverage-{folder}.json").read_text())
    row(f"{folder}/", summary["line_covered"], summary["line_total"])
    files += summary["files"]
print("The files with the most lines that were not executed:")
files.sort(key=lambda file: file["line_covered"] - file["line_total"])
for file in files[:15]:
    row(file["filename"], file["line_covered"], file["line_total"])
PYTHON
exit "$failed"
