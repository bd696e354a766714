#!/usr/bin/env bash
# Starts a small CephFS with two mounts, which tests use as the file systems of two machines.
#
#   tests/support/ceph_fs.sh start DIR     starts one monitor, manager, OSD and metadata server, and
#                                          mounts their file system at DIR/node1 and DIR/node2
#   tests/support/ceph_fs.sh stop DIR      unmounts, ends the daemons and removes DIR
#
# Needs root, /dev/fuse, and the packages of `tools/setup.sh --ceph`. DIR must not exist, and must be
# short (at most 70 bytes, because of UNIX sockets). Everything that it writes is below DIR, and the
# daemons listen only at 127.0.0.1. Each mount is a ceph-fuse process: a Ceph client with its own
# cache, like a machine. CAIRN_CEPH_GIB is the size of the OSD (8; the file is sparse).
set -euo pipefail

[[ $# == 2 ]] || { echo "usage: ceph_fs.sh start|stop DIR" >&2; exit 1; }
action=$1
dir=$(realpath -m "$2")
# shellcheck source=tests/support/ceph_cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/ceph_cluster.sh"

StartFileSystem() {
  mkdir -p "$dir"/{mds/a,node1,node2}
  Ceph osd pool create metadata 8 8 >/dev/null 2>&1
  Ceph osd pool create data 8 8 >/dev/null 2>&1
  Ceph fs new cairn metadata data >/dev/null 2>&1
  Daemon mds ceph-mds -f -i a
  Await 60 "the start of the metadata server" \
    sh -c 'ceph --connect-timeout 10 mds stat | grep -q "up:active"'
}

Start() {
  CheckCluster ceph-mds ceph-fuse
  [[ -e /dev/fuse ]] || Die "there is no /dev/fuse"
  trap 'Stop' EXIT  # removes a cluster that is not complete
  StartDaemons 1 1
  StartFileSystem
  local node
  for node in node1 node2; do
    Daemon "$node" ceph-fuse -f --client_mountpoint / "$dir/$node"
  done
  for node in node1 node2; do
    Await 60 "the mount at $dir/$node" mountpoint -q "$dir/$node"
  done
  trap - EXIT
}

Stop() {
  local node
  for node in node1 node2; do
    if mountpoint -q "$dir/$node"; then umount -l "$dir/$node" || true; fi
  done
  EndDaemons
  rm -rf --one-file-system "$dir"
}

case $action in
  start) Start ;;
  stop)
    [[ -e $dir/ceph.conf ]] || Die "$dir is not a directory of this script"
    Stop
    ;;
  *) Die "unknown action $action" ;;
esac
