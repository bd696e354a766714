#!/usr/bin/env bash
# Runs every GPU test and benchmark in this folder, prints one table and writes results.json.
#
#   ./run.sh [--dir DIR] [--bytes SIZE] [--repeat N] [--out results.json]
#
# Benchmarks write to DIR (default: this folder), which should be on the disk to be measured and have
# space for four times SIZE (4GiB). Exit status: 0 if no test and no benchmark failed. Whatever cannot
# run here is skipped with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null ||
  { echo "run: needs python3, which every Ubuntu 24.04 and PyTorch has" >&2; exit 2; }
exec python3 "$here/run_bundle.py" "$@"
