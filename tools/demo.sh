#!/usr/bin/env bash
# Sets up what is missing, builds, and demonstrates the main job: trains, kills the training during
# a save, resumes bit for bit, fine-tunes a part, and inspects the store. Explains each step.
#
#   tools/demo.sh [DIR]            writes results to DIR (default demo-run/), which is deleted first
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh
tools/build.sh release demo
# torch's threads sleep while they wait: spinning is several times slower on a busy machine.
export OMP_WAIT_POLICY=PASSIVE
exec .venv/bin/python tools/demo/demo.py "${1:-demo-run}"
