// Preloaded by a test: MPI starts as if it could serve one thread only.

#include <mpi.h>

extern "C" int MPI_Init_thread(int* argc, char*** argv, int /*required*/, int* provided) {
  return PMPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, provided);
}
