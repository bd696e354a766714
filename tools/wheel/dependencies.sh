#!/usr/bin/env bash
# Builds the libraries of sources.txt as static archives, and prints where they are, as a value of
# CMAKE_PREFIX_PATH:
#
#   tools/wheel/dependencies.sh CACHE     needs the variables that toolchain.cmake reads
#
# Debian's own archives cannot be a part of a Python module: they are not position-independent. Each
# library is built once and kept in CACHE, under a name that depends on its source, its function
# here, and the flags.
set -euo pipefail
cache=$(realpath "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
arch=$CAIRN_WHEEL_ARCH
mkdir -p "$cache/sources"
# The archive from which this machine installs its packages.
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$')

# Fetch PATH SHA256: downloads a file of Debian's archive with apt, which checks the sum.
Fetch() {
  local file=$cache/sources/${1##*/}
  [[ ! -f $file ]] || return 0
  /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file \
    "${archive}pool/main/$1" "$file.part" "SHA256:$2"
  mv "$file.part" "$file"
}

# Unpack PATH SHA256 FOLDER
Unpack() {
  local file=$cache/sources/${1##*/} sum name entries
  Fetch "$1" "$2"
  if [[ $1 == *.dsc ]]; then
    while read -r sum _ name; do
      Fetch "${1%/*}/$name" "$sum"
    done < <(sed -n '/^Checksums-Sha256:/,/^[^ ]*:$/{/^ /p}' "$file")
    dpkg-source --no-check -x "$file" "$3"
  else
    mkdir unpacked
    tar -xf "$file" -C unpacked
    entries=(unpacked/*)  # one folder, or the files themselves
    ((${#entries[@]} == 1)) || entries=(unpacked)
    mv "${entries[0]}" "$3"
  fi
}

# With sections, the linker drops each function that nothing calls: half of RocksDB.
flags=(-O2 -DNDEBUG -fPIC -ffunction-sections -fdata-sections)

# CMake FOLDER OPTION...
CMake() {
  cmake -S "$1" -B build -G Ninja -DCMAKE_TOOLCHAIN_FILE="$here/toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_{C,CXX}_FLAGS_RELEASE="${flags[*]}" \
    -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH="$prefixes" \
    "${@:2}"
  cmake --build build -j"$(nproc)"
  cmake --install build
}

# Package NAME WORD...: a file for pkg-config, with these flags of compilers and linkers.
Package() {
  mkdir -p "$prefix/lib/pkgconfig"
  printf '%s\n' "Name: $1" "Description: $1" "Version: 1" "Cflags: -I$prefix/include" \
    "Libs: -L$prefix/lib ${*:2}" >"$prefix/lib/pkgconfig/$1.pc"
}

# Archive NAME SOURCE...: compiles C sources.
Archive() {
  mkdir -p objects "$prefix/lib"
  (cd objects && "$arch-linux-gnu-gcc" "${flags[@]}" -c "${@:2}")
  "$arch-linux-gnu-ar" rcs "$prefix/lib/$1" objects/*.o
}

Headers() { mkdir -p "$prefix/include" && cp -r "$@" "$prefix/include"; }

Build_rocksdb() {  # with Debian's options, less the libraries that Cairn does not need
  CMake . -DROCKSDB_BUILD_SHARED=OFF -DUSE_RTTI=ON -DPORTABLE=ON -DFAIL_ON_WARNINGS=OFF \
    -DWITH_ZSTD=ON -DWITH_GFLAGS=OFF -DWITH_LIBURING=OFF -DWITH_TESTS=OFF -DWITH_TOOLS=OFF \
    -DWITH_CORE_TOOLS=OFF -DWITH_BENCHMARK_TOOLS=OFF -DWITH_TRACE_TOOLS=OFF \
    -DHAS_ARMV8_CRC=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12
}
Build_zstd() {
  CMake build/cmake -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_SHARED=OFF -DZSTD_LEGACY_SUPPORT=OFF
}
Build_gloo() { CMake . -DBUILD_TEST=OFF; }
Build_re2() {  # Debian's source lacks tables that are made from those of the package unicode-data
  make -j"$(nproc)" REBUILD_TABLES=1 CXX="$arch-linux-gnu-g++" AR="$arch-linux-gnu-ar" \
    CXXFLAGS="${flags[*]}" obj/libre2.a
  install -D obj/libre2.a "$prefix/lib/libre2.a"
  mkdir -p "$prefix/include/re2"
  cp re2/{filtered_re2,re2,set,stringpiece}.h "$prefix/include/re2"
}
Build_xxhash() {
  local dispatch=()
  if [[ $arch == x86_64 ]]; then dispatch=(../xxh_x86dispatch.c); fi
  Archive libxxhash.a ../xxhash.c "${dispatch[@]}"
  Headers xxhash.h xxh3.h xxh_x86dispatch.h
  Package libxxhash -lxxhash
}
Build_deflate() {  # the sources of another processor have the same names
  local processor=arm
  [[ $arch != x86_64 ]] || processor=x86
  Archive libdeflate.a -I"$PWD" "$PWD"/lib/*.c "$PWD/lib/$processor"/*.c
  Headers libdeflate.h
  Package libdeflate -ldeflate
}
Build_uring() {
  ./configure --cc="$arch-linux-gnu-gcc" --cxx="$arch-linux-gnu-g++"
  make -C src CFLAGS="${flags[*]}" AR="$arch-linux-gnu-ar" RANLIB="$arch-linux-gnu-ranlib" liburing.a
  install -D src/liburing.a "$prefix/lib/liburing.a"
  Headers src/include/*
  Package liburing -luring
}
Build_fmt() { CMake . -DFMT_TEST=OFF -DFMT_DOC=OFF; }
Build_pugixml() { CMake .; }
Build_json() { CMake . -DJSON_BuildTests=OFF; }
Build_cli11() { CMake . -DCLI11_BUILD_{DOCS,TESTS,EXAMPLES}=OFF; }
Build_flatbuffers() { Headers include/flatbuffers; }
Build_highway() {  # only its headers
  Headers hwy
  Package libhwy
}
Build_curl() {  # only its headers: CMake also asks for a library
  Headers include/curl
  install -D /dev/null "$prefix/lib/libcurl.a"
}

mkdir -p "$cache/log"
prefixes=
while read -r name path sum _; do
  key=$(declare -f Build_"$name" CMake Package Archive | cat - "$here/toolchain.cmake" \
    <(echo "$arch $sum ${flags[*]}") | sha256sum | cut -c 1-12)
  prefix=$cache/$arch-$name-$key
  if [[ ! -f $prefix/complete ]]; then
    work=$cache/work-$arch-$name
    log=$cache/log/$arch-$name.log
    start=$SECONDS
    rm -rf "$prefix" "$work"
    mkdir -p "$prefix" "$work"
    set +e  # bash ignores set -e in a condition
    (
      set -e
      cd "$work"
      Unpack "$path" "$sum" source
      cd source
      flags+=("-ffile-prefix-map=$PWD=$name")
      Build_"$name"
    ) >"$log" 2>&1 </dev/null
    status=$?
    set -e
    if ((status)); then
      tail -n 20 "$log" >&2
      echo "wheel: cannot build $name (complete log: $log)" >&2
      exit 1
    fi
    touch "$prefix/complete"
    rm -rf "$work"
    echo "wheel: built $name in $((SECONDS - start)) s" >&2
  fi
  prefixes+=${prefixes:+;}$prefix
done < <(grep -v '^#' "$here/sources.txt")
echo "$prefixes"
