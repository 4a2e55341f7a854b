# What every target of the project shares. A folder's CMakeLists.txt lists files and links, nothing else.

include(GNUInstallDirs)

# What hicache::store consists of. The other libraries stand on it, and are exported beside it.
set(HICACHE_STORE_LIBRARIES
    base cache endpoint host_memory backends backend_disk backend_external backend_redis backend_s3 backend_serde stores)

# hicache_expose(<target> <folder> [INTERFACE])
#
# Lets users of <target> include "<folder>/...". Each folder is seen through an include directory of its own, so a
# source can include a layer's headers only if its link line names that layer: the link lines prove the layering.
function(hicache_expose target folder)
  set(view "${PROJECT_BINARY_DIR}/layers/${folder}")
  file(MAKE_DIRECTORY "${view}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${view}/${folder}" SYMBOLIC)
  set(scope PUBLIC)
  if("INTERFACE" IN_LIST ARGN)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} "$<BUILD_INTERFACE:${view}>")
endfunction()

function(hicache_apply_build_mode target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>
    # g++ 12 reports std::string concatenation wrongly (GCC bug 105651).
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${HICACHE_WERROR}>>:-Werror>)
  # -fpch-preprocess lets ccache look through precompiled headers.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX)
  if(HICACHE_SANITIZER)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HICACHE_SANITIZER};-fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${HICACHE_SANITIZER})
    # GCC's manual says that this warning is often wrong beside sanitizers; builds without them keep it.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
    # Checks of each pointer before it is used double the time that templates take to compile, so they are for code that reads
    # bytes at computed addresses.
    if(HICACHE_SANITIZER MATCHES "undefined" AND NOT target MATCHES "wire|transport|serde$|gpu")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment>)
    endif()
  endif()
  if(HICACHE_SANITIZER STREQUAL "thread")
    # g++ warns that ThreadSanitizer does not see fences. Ours order bytes between processes, which it does not see either.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  endif()
endfunction()

# hicache_add_library(<layer> SOURCES ... [PUBLIC_LINK ...] [PRIVATE_LINK ...] [NOT_INSTALLED] [FOLDER <layer>])
#
# Defines hicache_<layer>, alias hicache::<layer>, from the sources of the current folder. Its archive is installed, without headers,
# unless only programs of this project link it. A folder in a layer may be a library of its own, which exposes no headers that the layer does not;
# so may some of a layer's sources (FOLDER), for those who need no more of it.
function(hicache_add_library name)
  cmake_parse_arguments(ARG "NOT_INSTALLED" "FOLDER" "SOURCES;PUBLIC_LINK;PRIVATE_LINK" ${ARGN})
  # These consist of headers, so who links the installed archive does not need them.
  foreach(headers CLI11::CLI11 nlohmann_json::nlohmann_json)
    list(TRANSFORM ARG_PUBLIC_LINK REPLACE "^${headers}$" "$<BUILD_INTERFACE:${headers}>")
    list(TRANSFORM ARG_PRIVATE_LINK REPLACE "^${headers}$" "$<BUILD_INTERFACE:${headers}>")
  endforeach()
  add_library(hicache_${name} ${ARG_SOURCES})
  add_library(hicache::${name} ALIAS hicache_${name})
  set_target_properties(hicache_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  if(ARG_FOLDER)
    hicache_expose(hicache_${name} ${ARG_FOLDER})
  elseif(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/${name}")
    hicache_expose(hicache_${name} ${name})
  endif()
  target_link_libraries(hicache_${name} PUBLIC ${ARG_PUBLIC_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  hicache_apply_build_mode(hicache_${name})
  if(NOT ARG_NOT_INSTALLED)
    set(export_set hicacheTargets)
    if(name IN_LIST HICACHE_STORE_LIBRARIES)
      set(export_set hicacheStoreTargets)
    endif()
    install(TARGETS hicache_${name} EXPORT ${export_set} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

# Little optimisation, for what runs once for a command, a request or a test and not for each page: g++ spends more than half of such a
# file's time on -O3.
function(hicache_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()

# hicache_add_program(<name> SOURCES ... LINK ...): an installed executable in build/<preset>/bin.
function(hicache_add_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  hicache_apply_build_mode(${name})
  hicache_compile_quickly(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# hicache_add_test(<name> LABEL <label> SOURCES ... LINK ... [OWN_PRECOMPILED]): one program, one ctest entry per TEST. All programs
# share one precompiled header of GoogleTest, unless one has a header of its own.
function(hicache_add_test name)
  cmake_parse_arguments(ARG "OWN_PRECOMPILED" "LABEL" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_BINARY_DIR}/layers/tests")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main)
  hicache_apply_test_mode(${name})
  if(NOT ARG_OWN_PRECOMPILED)
    target_precompile_headers(${name} REUSE_FROM test_headers)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120 LABELS "${ARG_LABEL}")
endfunction()

# The flags of test programs.
function(hicache_apply_test_mode target)
  hicache_apply_build_mode(${target})
  hicache_compile_quickly(${target}) # What is measured is the libraries.
  # g++ 12 reports std::optional of tl::expected wrongly when it inlines deeply (GCC bug 80635).
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  if(HICACHE_SANITIZER STREQUAL "thread")
    # ThreadSanitizer crashes at start in every program that links libucs, so leave out what a test does not use.
    target_link_options(${target} PRIVATE -Wl,--as-needed)
  endif()
endfunction()
