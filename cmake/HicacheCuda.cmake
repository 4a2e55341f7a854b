# Looks for nvcc and sets HICACHE_WITH_CUDA and HICACHE_CUDA_VERSION. Included by the top folder, because a language and the
# targets of a package are known in the folder that asks for them and below it.

set(HICACHE_WITH_CUDA OFF)
set(HICACHE_CUDA_VERSION "not in this build")
if(HICACHE_CUDA STREQUAL "OFF")
  message(STATUS "CUDA device: left out, HICACHE_CUDA is OFF")
else()
  find_program(HICACHE_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(HICACHE_NVCC)
  if(HICACHE_NVCC)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER "${HICACHE_NVCC}")
    endif()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      # Ampere, Hopper and Blackwell; later ones take the newest of these.
      set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    message(STATUS "CUDA device: built with ${CMAKE_CUDA_COMPILER}")
    set(HICACHE_WITH_CUDA ON)
    set(HICACHE_CUDA_VERSION "${CUDAToolkit_VERSION}")
  elseif(HICACHE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HICACHE_CUDA is ON, but nvcc was not found; install the CUDA toolkit or put nvcc on the PATH")
  else()
    message(STATUS "CUDA device: left out, nvcc was not found")
  endif()
endif()

# hicache_use_cuda(<target>): for a target with CUDA sources, or C++ sources that call the CUDA runtime.
function(hicache_use_cuda target)
  # As an option, because CMake 3.25 knows no CUDA_STANDARD 20. The other one lets kernels call functions that are constexpr.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>)
  target_compile_definitions(${target} PRIVATE HICACHE_HAVE_CUDA)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
