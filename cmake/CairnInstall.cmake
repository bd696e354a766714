# `cmake --install` and find_package(cairn): the static libraries cairn::schema, cairn::kv,
# cairn::core, cairn::interop and (if it is built) cairn::cuda with their public headers. The headers
# are installed in include/cairn, so that common folder names such as "core" cannot collide with
# other projects. The programs are installed by the folders that build them.
include(CMakePackageConfigHelpers)

set_target_properties(cairn_schema PROPERTIES EXPORT_NAME schema)
set_target_properties(cairn_kv PROPERTIES EXPORT_NAME kv)
set_target_properties(cairn_core PROPERTIES EXPORT_NAME core)
set_target_properties(cairn_interop PROPERTIES EXPORT_NAME interop)
set_target_properties(cairn_rocksdb PROPERTIES EXPORT_NAME rocksdb)
set_target_properties(cairn_gloo PROPERTIES EXPORT_NAME gloo)

install(TARGETS cairn_schema cairn_kv cairn_core cairn_interop cairn_rocksdb cairn_gloo
  EXPORT cairnTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cairn_development)
set(layers schema kv core)
if(TARGET cairn_cuda)
  # Exported separately: only projects that link it need the CUDA toolkit.
  list(APPEND layers cuda)
  set_target_properties(cairn_cuda PROPERTIES EXPORT_NAME cuda)
  install(TARGETS cairn_cuda EXPORT cairnCudaTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cairn_development)
endif()
foreach(layer ${layers})
  file(GLOB_RECURSE public_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/${layer}/*.h)
  list(FILTER public_headers EXCLUDE REGEX "/internal/")
  foreach(header ${public_headers})
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${header}
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn/${folder} COMPONENT cairn_development)
  endforeach()
endforeach()
install(DIRECTORY ${PROJECT_BINARY_DIR}/schema/generated/
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn
  COMPONENT cairn_development
  FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
install(EXPORT cairnTargets NAMESPACE cairn:: DESTINATION ${package_dir}
  COMPONENT cairn_development)
if(TARGET cairn_cuda)
  install(EXPORT cairnCudaTargets NAMESPACE cairn:: DESTINATION ${package_dir}
    COMPONENT cairn_development)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/cairnConfig.cmake.in
  ${PROJECT_BINARY_DIR}/cairnConfig.cmake INSTALL_DESTINATION ${package_dir})
# A minor version only adds to the C++ interface (docs/stability.md).
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cairnConfig.cmake
  ${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT cairn_development)
