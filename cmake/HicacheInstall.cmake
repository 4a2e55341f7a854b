# cmake --install: the libraries' export file, and what find_package(hicache) needs beside it. Headers, archives and
# programs are installed where they are declared (HicacheTargets.cmake).

include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/hicache")

if(HICACHE_CUDA_VERSION STREQUAL "not in this build")
  set(HICACHE_HAS_CUDA OFF)
else()
  set(HICACHE_HAS_CUDA ON)
endif()
configure_package_config_file(cmake/hicacheConfig.cmake.in "${PROJECT_BINARY_DIR}/hicacheConfig.cmake"
                              INSTALL_DESTINATION "${package_folder}")
# Before version 1.0 a new minor version may change everything.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/hicacheConfigVersion.cmake" COMPATIBILITY SameMinorVersion)

install(EXPORT hicacheStoreTargets NAMESPACE hicache:: DESTINATION "${package_folder}")
install(EXPORT hicacheTargets NAMESPACE hicache:: DESTINATION "${package_folder}")
install(EXPORT hicacheCTargets NAMESPACE hicache:: DESTINATION "${package_folder}")
install(FILES "${PROJECT_BINARY_DIR}/hicacheConfig.cmake" "${PROJECT_BINARY_DIR}/hicacheConfigVersion.cmake"
              cmake/FindCAF.cmake
        DESTINATION "${package_folder}")
