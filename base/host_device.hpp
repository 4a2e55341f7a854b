#pragma once

/// Mark functions that nvcc compiles for the GPU, or for CPU and GPU. Other compilers see nothing.
#ifdef __CUDACC__
#define HICACHE_DEVICE __device__
#define HICACHE_HOST_DEVICE __host__ __device__
#else
#define HICACHE_DEVICE
#define HICACHE_HOST_DEVICE
#endif
