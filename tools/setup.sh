#!/usr/bin/env bash
# Installs what the build, the tests and the demo need; fast when nothing is missing.
#
#   tools/setup.sh [--clang] [--fuzz] [--ceph] [--docs] [--integrations] [--browser]
#
#   --clang    also what the preset clang needs (300 MB)
#   --fuzz     also what the preset fuzz needs: the same, and libFuzzer (50 MB)
#   --ceph     also what tests/shared_fs and tests/rados need (56 MB)
#   --docs     also what builds the documentation site (Debian 220 MB, PyPI 60 MB)
#   --integrations
#              also the libraries of tests/integrations (PyPI, 1 GB)
#   --wheel=ARCH
#              only the Debian packages with which tools/build-wheel.sh builds for x86_64 or aarch64
#   --browser  also Chromium for the tests of pages (440 MB); only on Debian, because Ubuntu has it
#              only as a snap, without the driver. Without it these tests are skipped.
#
# Installs Debian packages (as root or with sudo), and the PyPI packages of
# python/requirements-dev.txt into .venv. Complete output: .cache/setup.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repo=$PWD
log=.cache/setup.log
requirements=python/requirements-dev.txt
stamp=.venv/.cairn-setup

docs=0
integrations=0
wheel=0
packages=(
  build-essential g++ cmake ninja-build ccache pkg-config git ca-certificates
  python3 python3-venv python3-dev
  librocksdb-dev libflatbuffers-dev flatbuffers-compiler libxxhash-dev libzstd-dev libhwy-dev liburing-dev
  libcurl4-openssl-dev libpugixml-dev
  libdeflate-dev libre2-dev libfmt-dev libcli11-dev nlohmann-json3-dev libgloo-dev
  libgtest-dev libgmock-dev libbenchmark-dev fio valgrind
  zsh fish
)

Die() { echo "setup: $*" >&2; exit 1; }

for argument in "$@"; do
  case $argument in
    --clang) packages+=(clang-19) ;;
    --fuzz) packages+=(clang-19 libclang-rt-19-dev) ;;
    --ceph) packages+=(ceph-mon ceph-osd ceph-mgr ceph-common ceph-mds ceph-fuse radosgw) ;;
    --docs) docs=1; packages+=(doxygen) ;;
    --integrations) integrations=1 ;;
    --wheel=*)
      wheel=1
      packages=(build-essential g++ cmake ninja-build ccache pkg-config python3 python3-venv python3-dev
        flatbuffers-compiler unicode-data ca-certificates)
      if [[ $argument == *aarch64 ]]; then packages+=(g++-aarch64-linux-gnu); fi
      ;;
    --browser)
      if [[ $(. /etc/os-release && echo "${ID:-}") == debian ]]; then
        packages+=(chromium chromium-driver)
      else
        echo "setup: no Chromium with a driver in the packages of this system"
      fi
      ;;
    *) Die "unknown option $argument" ;;
  esac
done

# Runs a command with its output in the log; on failure, prints the end of the log.
Logged() {
  echo "+ $*" >>"$log"
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    tail -n 25 "$log" >&2
    Die "failed: $* (complete log: $log)"
  fi
}

mkdir -p .cache
exec 9>.cache/setup.lock
flock 9  # the demo and the tests may run at the same time
: >"$log"

# Debian packages -----------------------------------------------------------------------------
command -v dpkg-query >/dev/null ||
  Die "needs Debian 12 or Ubuntu 24.04 (no dpkg here); docs/dependencies.md lists what to install"
declare -A installed=()
while read -r status name; do
  if [[ $status == ii* ]]; then installed[$name]=1; fi
done < <(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2>/dev/null)
missing=()
for name in "${packages[@]}"; do
  [[ -n ${installed[$name]:-} ]] || missing+=("$name")
done
if ((${#missing[@]})); then
  as_root=()
  if (($(id -u) != 0)); then
    command -v sudo >/dev/null ||
      Die "these Debian packages are missing, and sudo is not installed; run as root: ${missing[*]}"
    as_root=(sudo)
    sudo -v || Die "sudo refused; as root: apt-get install ${missing[*]}"
  fi
  echo "setup: installing ${#missing[@]} Debian packages"
  Logged "${as_root[@]}" apt-get update
  Logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
fi

# A compiler and a CMake that are new enough ------------------------------------------------------
expected=$(g++ -std=c++23 -x c++ -dM -E -include expected /dev/null 2>>"$log" || true)
grep -q __cpp_lib_expected <<<"$expected" ||
  Die "$(g++ --version | head -n 1) lacks std::expected;" \
    "needs g++ 12 or newer, as in Debian 12 and Ubuntu 24.04"
cmake_version=$(cmake --version | sed -n '1s/[^0-9]*//p')
[[ $(printf '%s\n' 3.25 "$cmake_version" | sort -V | head -n 1) == 3.25 ]] ||
  Die "CMake $cmake_version is too old; needs 3.25 or newer, as in Debian 12 and Ubuntu 24.04"
((wheel == 0)) || exit 0

# Python packages -----------------------------------------------------------------------------
# The stamp contains the path of the checkout, so that a moved checkout gets a new cairn.pth.
wanted="$(sha256sum <"$requirements") $repo"
if [[ ! -x .venv/bin/python || ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=
    for candidate in python3 /usr/bin/python3; do
      if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
          2>>"$log"; then
        python=$candidate
        break
      fi
    done
    [[ -n $python ]] ||
      Die "found no Python 3.11 or newer with venv (tried python3 and /usr/bin/python3)"
    echo "setup: creating .venv with $("$python" --version)"
    Logged "$python" -m venv --clear .venv
  fi
  echo "setup: installing Python packages (torch is large; this takes some minutes)"
  Logged .venv/bin/python -m pip install --disable-pip-version-check -r "$requirements"
  # `import cairn` finds the package in the build tree.
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$repo/build/python" >"$site/cairn.pth"
  echo "$wanted" >"$stamp"
fi

# InstallMore NAME WHAT: installs python/requirements-NAME.txt next to what is there.
InstallMore() {
  local more=python/requirements-$1.txt more_stamp=.venv/.cairn-$1
  local wanted_more
  wanted_more=$(sha256sum <"$more")
  if [[ ! -f $more_stamp || $(<"$more_stamp") != "$wanted_more" ]]; then
    echo "setup: installing $2"
    Logged .venv/bin/python -m pip install --disable-pip-version-check \
      -c "$requirements" -r "$more"
    echo "$wanted_more" >"$more_stamp"
  fi
}
if ((docs)); then InstallMore docs "what builds the documentation site (60 MB)"; fi
if ((integrations)); then InstallMore integrations "the libraries of tests/integrations (1 GB)"; fi

# Headers for the CUDA layer ------------------------------------------------------------------
# If there is a CUDA toolkit without the header of NCCL, takes it from PyPI's package. The
# library itself is opened at run time on machines with a GPU.
headers=.cache/nvidia/include
if nvcc=$(command -v nvcc) && [[ ! -f $headers/nccl.h ]]; then
  # Asks nvcc where it looks, because it may be a link or a script outside of its toolkit.
  cuda_runtime_h=$("$nvcc" -x cu -M /dev/null 2>>"$log" | grep -om1 '/[^ ]*/cuda_runtime.h' || true)
  if [[ -n $cuda_runtime_h ]] && ! echo "#include <nccl.h>" |
      g++ -E -x c++ -I "$(dirname "$(readlink -f "$cuda_runtime_h")")" - >/dev/null 2>>"$log"; then
    echo "setup: taking nccl.h from PyPI's nvidia-nccl-cu13 (once)"
    nccl=.cache/nvidia/nccl
    rm -rf "$nccl"  # what an interrupted run has left
    Logged .venv/bin/python -m pip install --disable-pip-version-check --no-deps \
      --only-binary=:all: --target "$nccl" nvidia-nccl-cu13==2.28.9
    mkdir -p "$headers"
    mv "$nccl/nvidia/nccl/include/nccl.h" "$headers"
    rm -rf "$nccl"
  fi
fi
