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

Die() { echo "ceph_fs: $*" >&2; exit 1; }

[[ $# == 2 ]] || Die "usage: ceph_fs.sh start|stop DIR"
action=$1
dir=$(realpath -m "$2")
export CEPH_CONF=$dir/ceph.conf PATH=$PATH:/usr/sbin:/sbin

Ceph() { timeout 60 ceph --connect-timeout 20 "$@"; }

# Await SECONDS WHAT COMMAND...: runs the command until it succeeds.
Await() {
  local seconds=$1 what=$2 end
  shift 2
  end=$((SECONDS + seconds))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || Die "$what did not happen within $seconds s; logs: $dir/log"
    sleep 0.1
  done
}

# Starts a daemon in its own session, so that signals to the test do not reach it.
Daemon() {
  local name=$1
  shift
  setsid "$@" >>"$dir/log/$name.out" 2>&1 </dev/null &
  echo $! >"$dir/pids/$name"
}

# Picks ports that are free now.
FreePorts() {
  python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))'
}

WriteConfiguration() {
  local fsid=$1 address=$2
  cat >"$CEPH_CONF" <<C
[global]
fsid = $fsid
mon_host = $address
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
auth_allow_insecure_global_id_reclaim = false
run_dir = $dir/run
crash_dir = $dir/run
admin_socket = $dir/run/\$name.\$pid.asok
log_file = $dir/log/\$name.log
log_to_stderr = false
keyring = $dir/none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
[mon]
mon_data = $dir/mon/\$id
mon_cluster_log_file = $dir/log/cluster.log
paxos_propose_interval = 0.1
mon_data_avail_warn = 2
mon_data_avail_crit = 1
[mgr]
mgr_data = $dir/mgr/\$id
mgr_initial_modules =
[osd]
osd_data = $dir/osd/\$id
osd_objectstore = bluestore
osd_memory_target = 939524096
bluestore_block_size = $((${CAIRN_CEPH_GIB:-8} << 30))
bluestore_block_create = true
bluestore_block_preallocate_file = false
[mds]
mds_data = $dir/mds/\$id
# Clients that change one directory in turn wait for this tick (5 s by default).
mds_tick_interval = 0.1
C
}

StartCluster() {
  local fsid osd mon_port v1_port address
  fsid=$(</proc/sys/kernel/random/uuid)
  osd=$(</proc/sys/kernel/random/uuid)
  read -r mon_port v1_port <<<"$(FreePorts)"
  address="[v2:127.0.0.1:$mon_port,v1:127.0.0.1:$v1_port]"
  mkdir -p "$dir"/{pids,log,run,mon,mgr/x,osd/0,mds/a,node1,node2}
  WriteConfiguration "$fsid" "$address"
  monmaptool --create --fsid "$fsid" --addv a "$address" "$dir/monmap" >"$dir/log/monmap" 2>&1
  ceph-mon --mkfs -i a --monmap "$dir/monmap" >"$dir/log/mon.mkfs" 2>&1
  Daemon mon ceph-mon -f -i a
  Daemon mgr ceph-mgr -f -i x
  Ceph osd new "$osd" 0 >/dev/null
  ceph-osd -i 0 --mkfs --osd-uuid "$osd" >"$dir/log/osd.mkfs" 2>&1
  Daemon osd ceph-osd -f -i 0
  Await 60 "the start of the OSD" sh -c 'ceph --connect-timeout 10 osd stat | grep -q " 1 up"'
  Ceph osd pool create metadata 8 8 >/dev/null 2>&1
  Ceph osd pool create data 8 8 >/dev/null 2>&1
  Ceph fs new cairn metadata data >/dev/null 2>&1
  Daemon mds ceph-mds -f -i a
  Await 60 "the start of the metadata server" \
    sh -c 'ceph --connect-timeout 10 mds stat | grep -q "up:active"'
}

Start() {
  ((${#dir} <= 70)) || Die "$dir is too long for the names of UNIX sockets"
  [[ ! -e $dir ]] || Die "$dir exists"
  [[ -e /dev/fuse ]] || Die "there is no /dev/fuse"
  local program
  for program in ceph ceph-mon ceph-mgr ceph-osd ceph-mds ceph-fuse; do
    command -v "$program" >/dev/null || Die "$program is not installed (tools/setup.sh --ceph)"
  done
  trap 'Stop' EXIT  # removes a cluster that is not complete
  StartCluster
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
  local node pid_file pid
  for node in node1 node2; do
    if mountpoint -q "$dir/$node"; then umount -l "$dir/$node" || true; fi
  done
  for pid_file in "$dir"/pids/*; do
    [[ -e $pid_file ]] || continue
    pid=$(<"$pid_file")
    # The number may have been given to another process in the meantime.
    grep -qs '^ceph' "/proc/$pid/comm" || continue
    kill -KILL "$pid" 2>/dev/null || true
    while [[ -e /proc/$pid ]] && ! grep -qs '^State:.Z' "/proc/$pid/status"; do sleep 0.05; done
  done
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
