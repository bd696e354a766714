#!/usr/bin/env bash
# Creates a folder with which a linker produces programs for glibc 2.28, although the compiler and the
# headers are those of a newer system:
#
#   tools/wheel/link_stubs.sh ARCH FOLDER     ARCH: x86_64 or aarch64
#
# A symbol gets the version that the library has at link time, so what is needed of an old glibc is
# the list of its symbols. Zig (the package ziglang of PyPI) has these lists, and writes them as
# libraries without code. It compiles nothing of Cairn or its dependencies. FOLDER contains these
# libraries, the code that starts programs (crt1.o), and compatibility.c as an archive, in which
# the linker finds the newer functions that g++ 12 and its library use.
set -euo pipefail
arch=$1
folder=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip install --disable-pip-version-check --quiet --no-deps --require-hashes \
  --target "$work/zig" -r "$here/requirements-stubs.txt"
echo 'int main(void) { return 0; }' >"$work/main.c"
export ZIG_GLOBAL_CACHE_DIR=$work/cache ZIG_LOCAL_CACHE_DIR=$work/cache
for mode in -no-pie -pie; do  # the first takes crt1.o, the second Scrt1.o
  "$work/zig/ziglang/zig" cc -target "$arch-linux-gnu.2.28" -fno-sanitize=undefined $mode \
    -o "$work/main" "$work/main.c" -lpthread -lm -ldl -lrt -lresolv -lutil
done

mkdir -p "$folder"
find "$work/cache" \( -name 'lib*.so.*' -o -name '*crt1.o' -o -name libc_nonshared.a \) \
  -exec cp {} "$folder" \;
for library in "$folder"/lib*.so.*; do
  name=${library##*/}
  ln -sf "$name" "$folder/${name%.*}"
done
"$arch-linux-gnu-gcc" -O2 -fPIC -Wall -Werror -c "$here/compatibility.c" -o "$work/compatibility.o"
"$arch-linux-gnu-ar" rcs "$folder/libcompatibility.a" "$work/compatibility.o"
# Since glibc 2.34, threads and dlopen are in libc, and g++ 12 does not name their libraries.
rm "$folder/libc.so"
echo 'GROUP(libc.so.6 libc_nonshared.a libcompatibility.a
  AS_NEEDED(libpthread.so.0 libdl.so.2 libm.so.6 librt.so.1 libld.so.2))' >"$folder/libc.so"
