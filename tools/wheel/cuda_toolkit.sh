#!/usr/bin/env bash
# Puts together a CUDA toolkit from the parts that Cairn is built with, which are packages of PyPI:
#
#   tools/wheel/cuda_toolkit.sh ARCH FOLDER     ARCH: that of the machine with the GPU
set -euo pipefail
arch=$1
folder=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
Install() {
  pip install --disable-pip-version-check --quiet --no-deps --require-hashes --target "$work/$1" \
    "${@:2}"
}
Install compiler -r "$here/requirements-cuda.txt"
Install runtime --only-binary=:all: --platform "manylinux_2_17_$arch" \
  -r "$here/requirements-cuda-runtime.txt"

mkdir "$work/toolkit"
cp -r "$work"/{runtime,compiler}/nvidia/cu13/. "$work/toolkit"
cp "$work/compiler/nvidia/nccl/include/nccl.h" "$work/toolkit/include"
ln -s lib "$work/toolkit/lib64"  # where nvcc and CMake search
ln -s libcudart.so.13 "$work/toolkit/lib/libcudart.so"  # CMake finds a toolkit by it
mv -T "$work/toolkit" "$folder"
