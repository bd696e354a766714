#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with libFuzzer and runs them (docs/fuzzing.md).
#
#   tools/fuzz.sh [--merge] [SECONDS] [NAME...]    SECONDS: per fuzzer, 10 by default
#                                                  NAME: such as roots; all fuzzers without one
#   --merge    afterwards adds the inputs that reach code for the first time to tests/fuzz/corpus
#
# Needs Clang 19 and its libFuzzer (tools/setup.sh --fuzz). Runs as many fuzzers at once as there
# are processors, or CAIRN_FUZZ_JOBS. Inputs that the fuzzers find are kept in .cache/fuzz/NAME/new
# and are used again by the next run; an input that fails is in .cache/fuzz/NAME/findings. The exit
# status is 0 only if there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=10
merge=0
names=()
for argument in "$@"; do
  case $argument in
    --merge) merge=1 ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "fuzz: unknown option $argument (see --help)" >&2; exit 2 ;;
    [0-9]*) seconds=$argument ;;
    *) names+=("$argument") ;;
  esac
done
if ((${#names[@]} == 0)); then
  for source in tests/fuzz/fuzz_*.cc; do
    name=${source##*/fuzz_}
    name=${name%.cc}
    [[ $name == support ]] || names+=("$name")
  done
fi
for name in "${names[@]}"; do
  if [[ ! -d tests/fuzz/corpus/$name ]]; then
    echo "fuzz: there is no fuzzer $name" >&2
    exit 2
  fi
done

tools/build.sh fuzz "${names[@]/#/fuzz_}"

# Symbolizers of other versions of LLVM are good enough, but are not found by themselves.
if symbolizer=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer); then
  export ASAN_SYMBOLIZER_PATH=$symbolizer
fi
export UBSAN_OPTIONS=print_stacktrace=1
readonly kMaxFiles=60
readonly kMaxFileBytes=4096

# Fuzz NAME: runs a fuzzer and prints one line.
Fuzz() {
  local name=$1 dir=.cache/fuzz/$1 status=0
  mkdir -p "$dir/new" "$dir/findings"
  # A decoder exceeds these limits if it does not bound its memory or time by its input.
  "build-fuzz/bin/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
    -malloc_limit_mb=1024 -max_len=16384 -print_final_stats=1 -artifact_prefix="$dir/findings/" \
    "$dir/new" "tests/fuzz/corpus/$name" >"$dir/log" 2>&1 </dev/null || status=$?
  local line
  line=$(awk '/^#[0-9]+.* cov: / {
      for (i = 1; i < NF; ++i) { if ($i == "cov:") edges = $(i + 1); if ($i == "corp:") inputs = $(i + 1) }
    }
    /average_exec_per_sec/ { speed = $2 }
    /number_of_executed_units/ { runs = $2 }
    END { printf "%9d runs, %6d per second, %5d edges, %s inputs", runs, speed, edges, inputs }' "$dir/log")
  printf '%-10s %s\n' "$name" "$line"
  if ((status != 0)); then
    grep -m 1 -E 'ERROR|runtime error|check failed|broken invariant|were allocated' "$dir/log" >&2 || true
    echo "fuzz: $name FAILED; log: $dir/log, input: $(ls -t "$dir/findings" | head -n 1)" >&2
    return 1
  fi
}

# Merge NAME: adds found inputs that reach new edges to the corpus, and removes the longest of them
# if there are too many.
Merge() {
  local name=$1 corpus=tests/fuzz/corpus/$1 found=.cache/fuzz/$1/merge file
  rm -rf "$found"
  cp -r "$corpus" "$found"
  "build-fuzz/bin/fuzz_$name" -set_cover_merge=1 -use_counters=0 -max_len="$kMaxFileBytes" \
    "$found" ".cache/fuzz/$name/new" >".cache/fuzz/$name/merge.log" 2>&1 </dev/null
  for file in "$found"/*; do
    file=${file##*/}
    if [[ $file =~ ^[0-9a-f]{40}$ ]]; then cp "$found/$file" "$corpus/found_${file:0:8}"; fi
  done
  while (($(ls "$corpus" | wc -l) > kMaxFiles)); do
    file=$(ls -S "$corpus" | grep -m 1 '^found_' || true)
    [[ -n $file ]] || break
    rm "$corpus/$file"
  done
  echo "fuzz: $corpus has $(ls "$corpus" | wc -l) files"
}

export -f Fuzz
export seconds
failed=0
printf '%s\n' "${names[@]}" |
  xargs -P "${CAIRN_FUZZ_JOBS:-$(nproc)}" -I{} bash -c 'Fuzz {}' || failed=1
if ((merge)); then
  for name in "${names[@]}"; do Merge "$name"; done
fi
exit "$failed"
