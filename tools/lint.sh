#!/usr/bin/env bash
# Checks the style of the files that differ from a commit, or of all files.
#
#   tools/lint.sh [COMMIT]      those that differ from COMMIT (HEAD), and new files
#   tools/lint.sh --all         all files
#
# C++ and CUDA: clang-format; Python: ruff; all text: codespell. tests/style, which tools/test.sh
# runs, checks the layout and the language.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-HEAD} in
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --all) mapfile -t files < <(git ls-files) ;;
  *) mapfile -t files < <(git diff --name-only --diff-filter=d "${1:-HEAD}" --
                          git ls-files --others --exclude-standard) ;;
esac
# Matching PATTERN: prints the files that are text of this kind and not test data.
Matching() {
  printf '%s\n' "${files[@]}" | grep -E "$1" | grep -vE '^tests/(golden|fuzz/corpus)/|^LICENSE$' || true
}
status=0
Matching '\.(cc|h|cu)$' |
  xargs -r -P "$(nproc)" -n 50 .venv/bin/clang-format --dry-run --Werror || status=1
Matching '\.(py|pyi)$' | xargs -r .venv/bin/ruff check --quiet --force-exclude || status=1
Matching '\.(cc|h|cu|py|pyi|md|sh|fbs|toml)$' | xargs -r .venv/bin/codespell || status=1
exit $status
