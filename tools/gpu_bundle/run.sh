#!/usr/bin/env bash
# Runs every GPU test and benchmark of this folder and prints one table; results.json has it all.
#
#   ./run.sh [--dir DIR] [--bytes SIZE] [--repeat N] [--out results.json]
#
# DIR (this folder) is where benchmarks write: it should be on the disk that is to be measured, with
# room for four times SIZE (4GiB). Exit status: 0 if no test and no benchmark failed. What cannot run
# here is skipped, with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null ||
  { echo "run: needs python3, which every Ubuntu 24.04 and PyTorch has" >&2; exit 2; }
exec python3 "$here/run_bundle.py" "$@"
