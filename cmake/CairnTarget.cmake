# Flags of our targets, as properties of each target. Call exactly one of these for each target:
#   cairn_target_options          libraries and programs of the product
#   cairn_test_options            programs with gtest, and libraries that only they link
#   cairn_compile_options         targets that use neither set of precompiled headers

# In a build with CMAKE_UNITY_BUILD, the sources of a folder and of its folder "internal" are
# compiled together, so that each header is read, and each template is instantiated, once per folder.
# Names in unnamed namespaces must then be unique per folder.
function(cairn_group_sources target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cairn_get_unity_folder(folder "${source}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "sources/${folder}")
  endforeach()
endfunction()

function(cairn_get_unity_folder result source)
  get_filename_component(folder "${source}" DIRECTORY)
  string(REGEX REPLACE "(^|/)internal$" "" folder "${folder}")
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# cairn_compile_together(target folder ...): compiles the sources of these folders together too.
function(cairn_compile_together target first)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cairn_get_unity_folder(folder "${source}")
    if(folder STREQUAL first OR folder IN_LIST ARGN)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "sources/${first}")
    endif()
  endforeach()
endfunction()

# cairn_compile_alone(a.cc ...): sources with such names that are not unique.
function(cairn_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(cairn_compile_options target)
  cairn_group_sources(${target})
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
    $<$<BOOL:${CAIRN_WERROR}>:-Werror>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    # Every such processor has fused operations; without them, sums are the same as on x86-64.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's garbage collector starts at 256 MB instead of 128 MB of live data: a precompiled header
    # alone has 100 MB, which it would scan repeatedly (10 % of the compile time).
    # -fpch-preprocess lets ccache work with precompiled headers.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=262144;-fpch-preprocess>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Checks the annotations of kv/base/mutex.h. Deprecation is left to GCC: Clang also
    # reports uses within libstdc++, such as the temporary buffers of std::stable_sort.
    target_compile_options(${target} PRIVATE -Wthread-safety -Wno-deprecated-declarations)
  endif()
  if(CAIRN_SANITIZER STREQUAL "address")
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=undefined
      -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  elseif(CAIRN_SANITIZER STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
  if(CAIRN_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# For a library that only programs link: compiled with the same flags as the programs.
function(cairn_compile_for_programs target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
endfunction()

# For programs, whose work is done by the libraries: compiling them takes a quarter less. In a wheel
# they are small instead (by 30 %), which makes the precompiled headers invalid.
function(cairn_optimize_less target)
  if(SKBUILD)
    set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:$<IF:$<BOOL:${SKBUILD}>,-Os,-O1>>)
endfunction()

function(cairn_target_options target)
  cairn_compile_options(${target})
  target_link_libraries(${target} PRIVATE fmt::fmt)  # its macro is part of the precompiled headers
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_precompile_headers(${target} REUSE_FROM cairn_program_headers)
  else()
    target_precompile_headers(${target} REUSE_FROM cairn_library_headers)
  endif()
endfunction()

# Test code is not optimised except for debugging, which halves its compile time; the libraries under
# test are. With a sanitizer it has no line numbers, and UBSan checks only the libraries and programs:
# a test then takes 8 s to compile instead of 26 s.
function(cairn_test_compile_options target)
  cairn_compile_options(${target})
  target_compile_options(${target} PRIVATE
    $<$<CONFIG:Release>:-O0> $<$<CONFIG:RelWithDebInfo>:-O0;-g0>)
  if(CAIRN_SANITIZER STREQUAL "address")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "EXECUTABLE")
    cairn_compile_for_programs(${target})
  endif()
endfunction()

function(cairn_test_options target)
  cairn_test_compile_options(${target})
  target_link_libraries(${target} PRIVATE fmt::fmt)
  target_precompile_headers(${target} REUSE_FROM cairn_test_headers)
endfunction()
