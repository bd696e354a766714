#!/usr/bin/env bash
# Starts a small Ceph cluster with its S3 gateway, radosgw.
#
#   tests/support/ceph_rgw.sh start DIR    starts one monitor, one manager, three OSDs and a gateway;
#                                          writes DIR/environment
#   tests/support/ceph_rgw.sh stop DIR     ends the daemons and removes DIR
#
# `. DIR/environment` sets what tests/support/seaweed.sh sets, and the bucket is empty. Needs the
# packages of `tools/setup.sh --ceph`. DIR must not exist. Everything that the daemons write is below
# DIR. CAIRN_CEPH_GIB is the size of each OSD (8; the files are sparse).
set -euo pipefail

(($# == 2)) || { echo "usage: ceph_rgw.sh start|stop DIR" >&2; exit 1; }
action=$1
dir=$(realpath -m "$2")
# shellcheck source=tests/support/ceph_cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/ceph_cluster.sh"

MakeCertificate() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=test -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$dir/key.pem" -out "$dir/certificate.pem" 2>"$dir/log/openssl" ||
    Die "cannot make a certificate: $(tail -n 3 "$dir/log/openssl")"
}

# StartGateway PORT TLS_PORT
StartGateway() {
  cat >>"$CEPH_CONF" <<C
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:$1 ssl_endpoint=127.0.0.1:$2 ssl_certificate=$dir/certificate.pem ssl_private_key=$dir/key.pem tcp_nodelay=1
rgw_thread_pool_size = 64
# A gateway asks monitors for a secure connection, which needs keys.
ms_mon_client_mode = crc
auth_client_required = none
rgw_exit_timeout_secs = 10
C
  Daemon rgw radosgw -f -n client.rgw
  Await 60 "the start of the gateway" curl --noproxy '*' -s -o /dev/null "http://127.0.0.1:$1/"
  timeout 60 radosgw-admin -n client.rgw user create --uid=test --display-name=test \
    --access-key=test-access-key --secret-key=test/secret+key >"$dir/log/user" 2>&1 ||
    Die "cannot create the user: $(tail -n 3 "$dir/log/user")"
  curl --noproxy '*' -sf -X PUT -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
    --aws-sigv4 aws:amz:us-east-1:s3 --user test-access-key:test/secret+key \
    "http://127.0.0.1:$1/cairn-test" >"$dir/log/bucket" ||
    Die "cannot create the bucket: $(<"$dir/log/bucket")"
}

Start() {
  local port tls_port
  CheckCluster radosgw radosgw-admin curl openssl
  trap 'EndDaemons; rm -rf "$dir"' EXIT  # removes a cluster that is not complete
  StartDaemons 3 2
  MakeCertificate
  read -r port tls_port <<<"$(FreePorts)"
  StartGateway "$port" "$tls_port"
  cat >"$dir/environment" <<C
export CEPH_CONF=$CEPH_CONF
export AWS_ENDPOINT_URL_S3=http://127.0.0.1:$port
export AWS_ACCESS_KEY_ID=test-access-key
export AWS_SECRET_ACCESS_KEY=test/secret+key
export AWS_REGION=us-east-1
export CAIRN_TEST_S3_BUCKET=cairn-test
export CAIRN_TEST_S3_TLS_ENDPOINT=https://127.0.0.1:$tls_port
export CAIRN_TEST_S3_CA_BUNDLE=$dir/certificate.pem
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
  *) Die "unknown action $action" ;;
esac
