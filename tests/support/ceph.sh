#!/usr/bin/env bash
# Starts a small Ceph cluster with RADOS pools.
#
#   tests/support/ceph.sh start DIR     starts one monitor, one manager and three OSDs; writes
#                                       DIR/environment
#   tests/support/ceph.sh stop DIR      ends the daemons and removes DIR
#   tests/support/ceph.sh kill DIR N    kills OSD N
#   tests/support/ceph.sh revive DIR N  starts OSD N again
#
# `. DIR/environment` sets CEPH_CONF, CAIRN_TEST_CEPH_POOL (replicated, two copies) and
# CAIRN_TEST_CEPH_EC_POOL (erasure-coded, k=2 m=1). Needs the packages of `tools/setup.sh --ceph`.
# DIR must not exist. Everything that the daemons write is below DIR. CAIRN_CEPH_GIB is the size of
# each OSD (8; the files are sparse).
set -euo pipefail

(($# >= 2)) || { echo "usage: ceph.sh start|stop DIR, or kill|revive DIR N" >&2; exit 1; }
action=$1
dir=$(realpath -m "$2")
# shellcheck source=tests/support/ceph_cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/ceph_cluster.sh"

Start() {
  CheckCluster
  trap 'EndDaemons; rm -rf "$dir"' EXIT  # removes a cluster that is not complete
  StartDaemons 3 2
  Ceph osd pool create cairn 8 8 >/dev/null 2>&1
  Ceph osd erasure-code-profile set cairn k=2 m=1 crush-failure-domain=osd >/dev/null 2>&1
  Ceph osd pool create cairn-ec 8 8 erasure cairn >/dev/null 2>&1
  Ceph osd pool set cairn-ec min_size 2 >/dev/null 2>&1
  Await 60 "the creation of the pools" \
    sh -c 'ceph --connect-timeout 10 pg stat | grep -q " 1[67] active+clean;"'
  cat >"$dir/environment" <<C
export CEPH_CONF=$CEPH_CONF
export CAIRN_TEST_CEPH_POOL=cairn
export CAIRN_TEST_CEPH_EC_POOL=cairn-ec
C
  trap - EXIT
}

case $action in
  start) Start ;;
  stop)
    [[ -e $dir ]] || exit 0
    [[ -e $dir/ceph.conf ]] || Die "$dir is not a directory of this script"
    EndDaemons
    rm -rf --one-file-system "$dir"
    ;;
  kill) kill -KILL "$(<"$dir/pids/osd.$3")" ;;
  revive) Daemon "osd.$3" ceph-osd -f -i "$3" ;;
  *) Die "unknown action $action" ;;
esac
