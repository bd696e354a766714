# Starts and ends the daemons of a small Ceph cluster; for `source` by ceph.sh, ceph_fs.sh and
# ceph_rgw.sh.
#
# The caller sets `dir`, where everything is written. It must be short (at most 70 bytes, because of
# UNIX sockets). The daemons listen only at 127.0.0.1, on free ports.

export CEPH_CONF=$dir/ceph.conf PATH=$PATH:/usr/sbin:/sbin

Die() { echo "$(basename "$0" .sh): $*" >&2; exit 1; }

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

# Daemon NAME COMMAND...: starts a daemon in its own session, so that signals to the test do not
# reach it.
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

# CheckCluster PROGRAM...: whether a cluster can be started here.
CheckCluster() {
  local program
  ((${#dir} <= 70)) || Die "$dir is too long for the names of UNIX sockets"
  [[ ! -e $dir ]] || Die "$dir exists"
  for program in ceph ceph-mon ceph-mgr ceph-osd "$@"; do
    command -v "$program" >/dev/null || Die "$program is not installed (tools/setup.sh --ceph)"
  done
}

# WriteConfiguration FSID ADDRESS POOL_SIZE
WriteConfiguration() {
  cat >"$CEPH_CONF" <<C
[global]
fsid = $1
mon_host = $2
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
osd_pool_default_size = $3
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
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

# StartOsd NUMBER: creates it and starts it.
StartOsd() {
  local osd
  osd=$(</proc/sys/kernel/random/uuid)
  mkdir -p "$dir/osd/$1"
  Ceph osd new "$osd" "$1" >/dev/null
  ceph-osd -i "$1" --mkfs --osd-uuid "$osd" >"$dir/log/osd.$1.mkfs" 2>&1
  Daemon "osd.$1" ceph-osd -f -i "$1"
}

# StartDaemons OSD_COUNT POOL_SIZE: starts one monitor, one manager and OSDs.
StartDaemons() {
  local fsid mon_port v1_port address osd
  fsid=$(</proc/sys/kernel/random/uuid)
  read -r mon_port v1_port <<<"$(FreePorts)"
  address="[v2:127.0.0.1:$mon_port,v1:127.0.0.1:$v1_port]"
  mkdir -p "$dir"/{pids,log,run,mon,mgr/x}
  WriteConfiguration "$fsid" "$address" "$2"
  monmaptool --create --fsid "$fsid" --addv a "$address" "$dir/monmap" >"$dir/log/monmap" 2>&1
  ceph-mon --mkfs -i a --monmap "$dir/monmap" >"$dir/log/mon.mkfs" 2>&1
  Daemon mon ceph-mon -f -i a
  Daemon mgr ceph-mgr -f -i x
  for ((osd = 0; osd < $1; ++osd)); do StartOsd "$osd"; done
  Await 60 "the start of the OSDs" \
    sh -c "ceph --connect-timeout 10 osd stat | grep -q ' $1 up'"
}

# Ends the daemons that Daemon started.
EndDaemons() {
  local pid_file pid
  for pid_file in "$dir"/pids/*; do
    [[ -e $pid_file ]] || continue
    pid=$(<"$pid_file")
    # The number may have been given to another process in the meantime.
    grep -qsE '^(ceph|radosgw)' "/proc/$pid/comm" || continue
    kill -KILL "$pid" 2>/dev/null || true
    while [[ -e /proc/$pid ]] && ! grep -qs '^State:.Z' "/proc/$pid/status"; do sleep 0.05; done
  done
}
