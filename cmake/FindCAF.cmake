# Debian's libcaf-dev brings no package file. This module finds the headers and the libraries named in
# COMPONENTS and defines an imported target for each, such as CAF::core.
find_path(CAF_INCLUDE_DIR NAMES caf/actor_system.hpp)
mark_as_advanced(CAF_INCLUDE_DIR)

if(CAF_INCLUDE_DIR)
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" _caf_line REGEX "#define CAF_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+" _caf_number "${_caf_line}")
  math(EXPR _caf_major "${_caf_number} / 10000")
  math(EXPR _caf_minor "${_caf_number} / 100 % 100")
  math(EXPR _caf_patch "${_caf_number} % 100")
  set(CAF_VERSION "${_caf_major}.${_caf_minor}.${_caf_patch}")
endif()

foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  find_library(CAF_${_component}_LIBRARY NAMES caf_${_component})
  mark_as_advanced(CAF_${_component}_LIBRARY)
  if(CAF_${_component}_LIBRARY)
    set(CAF_${_component}_FOUND TRUE)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION HANDLE_COMPONENTS)

if(CAF_FOUND)
  find_package(Threads REQUIRED)
  foreach(_component IN LISTS CAF_FIND_COMPONENTS)
    if(NOT TARGET CAF::${_component})
      add_library(CAF::${_component} UNKNOWN IMPORTED)
      set_target_properties(CAF::${_component} PROPERTIES
        IMPORTED_LOCATION "${CAF_${_component}_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}")
      if(_component STREQUAL "core")
        target_link_libraries(CAF::core INTERFACE Threads::Threads)
        # Refuses message types that were never announced, at compile time.
        target_compile_definitions(CAF::core INTERFACE CAF_ENABLE_TYPE_ID_CHECKS)
      else()
        target_link_libraries(CAF::${_component} INTERFACE CAF::core)
      endif()
    endif()
  endforeach()
endif()
