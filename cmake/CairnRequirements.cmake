# States all libraries that are missing at once, with the packages that have them.
# Each line: a header or program, and its packages in Debian and Ubuntu, and in Fedora.
set(cairn_requirements
  "flatc|flatbuffers-compiler|flatbuffers-compiler"
  "pkg-config|pkg-config|pkgconf-pkg-config"
  "flatbuffers/flatbuffers.h|libflatbuffers-dev|flatbuffers-devel"
  "fmt/format.h|libfmt-dev|fmt-devel"
  "nlohmann/json.hpp|nlohmann-json3-dev|json-devel"
  "CLI/CLI.hpp|libcli11-dev|cli11-devel"
  "curl/curl.h|libcurl4-openssl-dev|libcurl-devel"
  "pugixml.hpp|libpugixml-dev|pugixml-devel"
  "liburing.h|liburing-dev|liburing-devel"
  "zstd.h|libzstd-dev|libzstd-devel"
  "hwy/highway.h|libhwy-dev|highway-devel"
  "libdeflate.h|libdeflate-dev|libdeflate-devel"
  "xxhash.h|libxxhash-dev|xxhash-devel"
  "rocksdb/db.h|librocksdb-dev|rocksdb-devel"
  "re2/re2.h|libre2-dev|re2-devel"
  "gloo/context.h|libgloo-dev|gloo-devel")

set(missing "")
set(of_debian "")
set(of_fedora "")
foreach(line ${cairn_requirements})
  string(REPLACE "|" ";" line "${line}")
  list(GET line 0 what)
  if(what MATCHES "\\.")
    find_path(found ${what} NO_CACHE)
  else()
    find_program(found ${what} NO_CACHE)
  endif()
  if(NOT found)
    list(GET line 1 debian)
    list(GET line 2 fedora)
    string(APPEND missing " ${what}")
    string(APPEND of_debian " ${debian}")
    string(APPEND of_fedora " ${fedora}")
  endif()
  unset(found)
endforeach()
if(missing)
  message(FATAL_ERROR "Cairn is built from libraries of the system, and these are missing:${missing}\n"
    "  Debian, Ubuntu:  apt-get install${of_debian}\n"
    "  Fedora:          dnf install${of_fedora}\n"
    "The wheels of cairn-ckpt contain them: pip install --only-binary cairn-ckpt cairn-ckpt")
endif()
