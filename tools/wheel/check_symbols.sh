#!/usr/bin/env bash
# Refuses a wheel with files that need what the loader may not find, which a linker accepts in
# modules: symbols without a version, and libraries that are not a part of every Linux with glibc.
#
#   tools/wheel/check_symbols.sh WHEEL
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m zipfile -e "$1" "$work"
system='lib(c|m|dl|pthread|rt|gcc_s)\.so\.[0-9]|ld-linux-.*'
checked=0
bad=0
while IFS= read -r -d '' file; do
  [[ $(head -c 4 "$file" | tr -d '\0') == $'\x7fELF' ]] || continue
  checked=$((checked + 1))
  # Python itself provides its interface. Weak symbols may be absent.
  found=$(nm -D --undefined-only "$file" | awk '$1 == "U" && $2 !~ /@|^_?Py/ { print $2 }'
    readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
      { grep -Ev "^($system)$" || true; })
  if [[ $found ]]; then
    printf "error: ${file#"$work/"} needs %s\n" $found >&2
    bad=1
  fi
done < <(find "$work" -type f -print0)
((checked >= 4)) || { echo "error: $1 has $checked programs and modules" >&2; exit 1; }
exit $bad
