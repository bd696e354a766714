# Libraries, all from packages of the distribution (docs/dependencies.md states the reason for
# each).
find_program(FLATC flatc REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(CURL 7.86 REQUIRED)  # only its headers: libcurl is opened at run time
find_package(pugixml REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(libzstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(libhwy REQUIRED IMPORTED_TARGET libhwy)  # the library itself: only for tests
pkg_check_modules(libdeflate REQUIRED IMPORTED_TARGET libdeflate)
pkg_check_modules(libxxhash REQUIRED IMPORTED_TARGET libxxhash)
# Debian's library contains variants for newer x86 processors; without them XXH3 uses SSE2.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::libxxhash)
check_cxx_source_compiles("#include <xxhash.h>
#include <xxh_x86dispatch.h>
int main() { return static_cast<int>(XXH3_64bits(\"\", 0)); }" CAIRN_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)

# RocksDB's package config requires its build-time dependencies (gflags, snappy, ...). The shared
# library needs none of them, so it is found by name.
find_library(ROCKSDB_LIBRARY NAMES rocksdb REQUIRED)
find_path(ROCKSDB_INCLUDE_DIR rocksdb/db.h REQUIRED)
add_library(cairn_rocksdb INTERFACE)
add_library(cairn::rocksdb ALIAS cairn_rocksdb)
# What the archive of wheels needs (tools/wheel).
target_link_libraries(cairn_rocksdb INTERFACE ${ROCKSDB_LIBRARY} PkgConfig::libzstd ${CMAKE_DL_LIBS})
target_include_directories(cairn_rocksdb SYSTEM INTERFACE ${ROCKSDB_INCLUDE_DIR})

# RE2's flags for compilers (-pthread) would not match those of the precompiled headers.
find_library(RE2_LIBRARY NAMES re2 REQUIRED)
find_path(RE2_INCLUDE_DIR re2/re2.h REQUIRED)
add_library(cairn_re2 INTERFACE)
add_library(cairn::re2 ALIAS cairn_re2)
target_link_libraries(cairn_re2 INTERFACE ${RE2_LIBRARY})
target_include_directories(cairn_re2 SYSTEM INTERFACE ${RE2_INCLUDE_DIR})

# Gloo's package config exports a target without a namespace, "gloo".
find_library(GLOO_LIBRARY NAMES gloo REQUIRED)
find_path(GLOO_INCLUDE_DIR gloo/context.h REQUIRED)
add_library(cairn_gloo INTERFACE)
add_library(cairn::gloo ALIAS cairn_gloo)
target_link_libraries(cairn_gloo INTERFACE ${GLOO_LIBRARY})
target_include_directories(cairn_gloo SYSTEM INTERFACE ${GLOO_INCLUDE_DIR})
