#!/usr/bin/env bash
# Runs every GPU test and benchmark of this folder, prints one table and writes results.json.
#
#   ./run.sh [--dir DIR] [--bytes SIZE] [--repeat N] [--out results.json]
#
# The first start unpacks the programs next to this file (see start.py). Benchmarks write to DIR
# (default: this folder), which should be on the disk to be measured and have space for four times
# SIZE (4GiB). If this folder is read-only, --dir and --out must name other places. Exit status: 0
# if no test and no benchmark failed, 1 if one failed, 2 if nothing could be started. Whatever
# cannot run here is skipped with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null ||
  { echo "run: needs python3, which every Ubuntu 24.04 and PyTorch has" >&2; exit 2; }
# -B: leaves no __pycache__ next to this file.
exec python3 -B "$here/start.py" "$@"
