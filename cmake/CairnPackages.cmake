# Debian packages: `cpack -G DEB --config build/CPackConfig.cmake` writes cairn-tools (the programs)
# and libcairn-dev (the static libraries, headers and the CMake package). With SOURCE_DATE_EPOCH, two
# packages of a commit are equal.
set(CPACK_PACKAGE_NAME cairn)
set(CPACK_PACKAGE_VENDOR Cairn)
# 1.0.0~rc1 is older than 1.0.0.
string(REGEX REPLACE "([0-9])([a-z])" "\\1~\\2" CPACK_DEBIAN_PACKAGE_VERSION ${CAIRN_VERSION})
set(CPACK_PACKAGE_CONTACT "Cairn <cairn@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL cairn_programs cairn_development)
set(CPACK_COMPONENTS_GROUPING IGNORE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_COMPONENT_CAIRN_PROGRAMS_DESCRIPTION "key-value store for tensor checkpoints: programs
 kv-dump reads stores of checkpoints, kv-admin changes them, and kv-bench
 measures their performance.")
set(CPACK_DEBIAN_CAIRN_PROGRAMS_PACKAGE_NAME cairn-tools)
set(CPACK_DEBIAN_CAIRN_PROGRAMS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_CAIRN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CAIRN_PROGRAMS_PACKAGE_RECOMMENDS libcurl4)  # opened for s3:// addresses
set(CPACK_DEBIAN_CAIRN_PROGRAMS_PACKAGE_SUGGESTS librados2)   # opened for rados: addresses
set(CPACK_COMPONENT_CAIRN_DEVELOPMENT_DESCRIPTION
  "key-value store for tensor checkpoints: C++ library
 The static libraries, the headers, and the CMake package: find_package(cairn)
 provides cairn::core, with which C++ programs save and load tensors.")
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_NAME libcairn-dev)
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_DEPENDS "libdeflate-dev, libflatbuffers-dev, \
libfmt-dev, \
libgloo-dev, libpugixml-dev, libre2-dev, librocksdb-dev, liburing-dev, libxxhash-dev, libzstd-dev, \
nlohmann-json3-dev, pkg-config")
# Of the libraries of which code is in the packages, because they have only headers, and more.
foreach(component programs development)
  string(TOUPPER ${component} name)
  set(folder ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_CAIRN_${name}_PACKAGE_NAME})
  install(FILES NOTICE DESTINATION ${folder} RENAME copyright COMPONENT cairn_${component})
  install(FILES LICENSE DESTINATION ${folder} COMPONENT cairn_${component})
  install(DIRECTORY tools/wheel/licenses DESTINATION ${folder} COMPONENT cairn_${component})
endforeach()
include(CPack)
