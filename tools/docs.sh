#!/usr/bin/env bash
# Builds the documentation site into build/site/html. Warnings are errors, and nothing is fetched.
#
#   tools/docs.sh [SPHINX-OPTION...]
#
# Needs the Python package of the build tree, whose docstrings the site contains: tools/build.sh.
# CAIRN_BUILD_DIR is another build tree than build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${CAIRN_BUILD_DIR:-build}
PYTHONPATH=$build/python${PYTHONPATH:+:$PYTHONPATH} .venv/bin/python -m sphinx \
  --fail-on-warning --keep-going --quiet -d "$build/site/doctrees" "$@" docs "$build/site/html"
echo "docs: $build/site/html/index.html"
