// hicache-replay: an engine made of a trace. Runs SPMD under mpirun, with its rank embedded, on
// real KV bytes.

#include "launch/replay_program.hpp"

int main(int argc, char** argv) {
  return hicache::run_replay(argc, argv);
}
