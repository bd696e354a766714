#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the main job: train, die in the middle of a save, resume
# bit for bit, fine-tune on a part, look inside. Says what it does and why as it goes.
#
#   tools/demo.sh [DIR]            results stay in DIR (default demo-run/, made anew each time)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh
tools/build.sh release
exec .venv/bin/python tools/demo/demo.py "${1:-demo-run}"
