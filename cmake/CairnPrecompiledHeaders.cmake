# Precompiled headers, one set per kind of target: the compiler accepts a precompiled header only
# for the flags with which it was compiled. They contain headers that most sources include and that
# our edits do not change (except kv/base/error.h, on which nearly every source depends anyway). A source
# still includes everything that it uses; the presets without precompiled headers
# (CMAKE_DISABLE_PRECOMPILE_HEADERS) check that.
set(CAIRN_LIBRARY_HEADERS
  <algorithm> <array> <atomic> <cerrno> <chrono> <condition_variable> <cstdint> <cstring> <expected>
  <filesystem> <functional> <limits> <map> <memory> <mutex> <optional> <set> <span> <string>
  <string_view> <system_error> <thread> <unordered_map> <utility> <variant> <vector>
  <fmt/format.h> [["kv/base/error.h"]])
set(CAIRN_TEST_HEADERS
  <fstream> <random> <gmock/gmock.h> <gtest/gtest.h> ${CAIRN_LIBRARY_HEADERS})

# cairn_add_headers(name LIBRARIES fmt::fmt ... HEADERS <vector> ...): compiles the headers for the
# targets that name this one in target_precompile_headers(... REUSE_FROM name).
function(cairn_add_headers name)
  cmake_parse_arguments(arg "" "" "LIBRARIES;HEADERS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled_headers.cc)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

# Libraries, which are position-independent because the Python module links them.
cairn_add_headers(cairn_library_headers LIBRARIES fmt::fmt HEADERS ${CAIRN_LIBRARY_HEADERS})
cairn_compile_options(cairn_library_headers)

# Programs, and the libraries that only programs link.
cairn_add_headers(cairn_program_headers LIBRARIES fmt::fmt nlohmann_json::nlohmann_json
                  HEADERS <nlohmann/json.hpp> ${CAIRN_LIBRARY_HEADERS})
cairn_compile_options(cairn_program_headers)
cairn_compile_for_programs(cairn_program_headers)

if(CAIRN_BUILD_TESTS)
  find_package(GTest REQUIRED)
  cairn_add_headers(cairn_test_headers LIBRARIES fmt::fmt GTest::gmock
                    HEADERS ${CAIRN_TEST_HEADERS})
  cairn_test_compile_options(cairn_test_headers)
endif()
