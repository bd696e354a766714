#!/usr/bin/env bash
# Measures which lines of kv/ and core/ the C++ tests execute.
#
#   tools/coverage.sh [CTEST OPTION...]    builds the preset coverage, runs its tests (without those
#                                          labelled slow or ceph, or those that the options select),
#                                          and prints the share of the lines of each folder
#
# build-coverage/coverage.txt has the share of each file, and the lines that were not executed.
# Exits with 1 if a test failed, or if fewer than 90 % of the lines of kv/ or of core/ were executed.
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

# Only the objects of kv/ and core/: what tests execute of their headers by themselves does not count.
gcovr=(.venv/bin/gcovr --root .)
"${gcovr[@]}" --object-directory "$dir" --filter kv/ --filter core/ -j "$(nproc)" \
  --gcov-ignore-errors=no_working_dir_found --gcov-ignore-parse-errors=negative_hits.warn \
  --txt "$dir/coverage.txt" --json "$dir/coverage.json" "$dir/kv" "$dir/core"
for folder in kv core; do
  echo "== Line coverage of $folder/"
  "${gcovr[@]}" --add-tracefile "$dir/coverage.json" --filter "$folder/" --txt "$dir/$folder.txt" \
    --print-summary --fail-under-line "$least" || failed=1
done
exit "$failed"
