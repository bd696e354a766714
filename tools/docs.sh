#!/usr/bin/env bash
# Builds the documentation site into build/site/html. Warnings are errors, and nothing is fetched.
#
#   tools/docs.sh [SPHINX-OPTION...]
#
# Needs the Python package of the build tree, whose docstrings the site contains: tools/build.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHONPATH=build/python${PYTHONPATH:+:$PYTHONPATH} .venv/bin/python -m sphinx \
  --fail-on-warning --keep-going --quiet -d build/site/doctrees "$@" docs build/site/html
echo "docs: build/site/html/index.html"
