#!/usr/bin/env bash
# Builds one CMake preset (release by default) and prints as little as possible.
#
#   tools/build.sh [PRESET] [TARGET...]    build/ for release, build-PRESET/ for the others; everything
#                                          without a TARGET
#
# Complete output: build.log in the build folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-release}
targets=("${@:2}")
dir=build
[[ $preset == release ]] || dir=build-$preset
mkdir -p "$dir"
log=$dir/build.log

# On a terminal, shows Ninja's "[3/70] ..." lines as one line that is updated in place.
Progress() {
  if [[ -t 2 ]]; then
    awk -v what="build $preset" 'match($0, /^\[[0-9]+\/[0-9]+\]/) {
      printf "\r%s: %s ", what, substr($0, 1, RLENGTH) > "/dev/stderr"; fflush() }
      END { printf "\r\033[K" > "/dev/stderr" }'
  else
    cat >/dev/null
  fi
}
Fail() {
  # The compiler's messages if there are any, otherwise the end of the log.
  grep -E -A 12 '(error:|^FAILED|CMake Error)' "$log" | head -n 60 >&2 || tail -n 40 "$log" >&2
  echo "build: $preset failed after ${SECONDS} s (complete log: $log)" >&2
  exit 1
}

: >"$log"
if [[ ! -f $dir/build.ninja || CMakePresets.json -nt $dir/CMakeCache.txt ]]; then
  echo "build: configuring $preset in $dir/"
  cmake --preset "$preset" >>"$log" 2>&1 </dev/null || Fail
  touch "$dir/CMakeCache.txt"
fi
cmake --build --preset "$preset" -j "$(nproc)" ${targets:+--target "${targets[@]}"} 2>&1 </dev/null | tee -a "$log" | Progress || Fail
if ((SECONDS > 2)); then echo "build: ${targets[*]:-everything} of $preset is up to date (${SECONDS} s)"; fi
