#!/usr/bin/env bash
# Starts the ranks of a run on this host and waits for all of them.
#
#   run.sh TRAINER STORE RANKS LAST_STEP
#
# The exit status is 0 only if all ranks exit with 0.
set -euo pipefail

if (($# != 4)); then
  sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
trainer=$1 store=$2 ranks=$3 last_step=$4

meeting_place=$(mktemp -d)
trap 'rm -rf "$meeting_place"' EXIT
pids=()
for ((rank = 0; rank < ranks; ++rank)); do
  "$trainer" "$store" "$rank" "$ranks" "file://$meeting_place" "$last_step" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
  wait "$pid" || status=1
done
exit "$status"
