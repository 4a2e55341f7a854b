// hicache-replay: an engine that replays a trace on real KV bytes; one rank, or SPMD under mpirun.

#include "launch/replay_program.hpp"

int main(int argc, char** argv) {
  return hicache::run_replay(argc, argv);
}
