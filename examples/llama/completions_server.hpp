#pragma once

#include "examples/llama/engine.hpp"
#include "launch/stop_signal.hpp"

#include <caf/actor.hpp>

#include <prometheus/registry.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama {

struct server_options {
  /// What `GET /metrics` shows.
  std::shared_ptr<prometheus::Registry> registry;
  /// HOST:PORT; port 0 picks a free one.
  std::string listen = "127.0.0.1:8000";
  /// Name of the model, as clients see it.
  std::string model;
  uint64_t vocabulary = 0;
  /// Longest sequence, in tokens: of the model, and of the device pool.
  uint64_t positions = 0;
  /// That of rank 0 (run_engine).
  caf::actor engine;
  /// Clients are answered from then on also if the engine does not: ranks that died make it wait.
  const hicache::stop_signal* stop = nullptr;
  /// "both", "prefill" or "decode": which handoffs of KV the instance takes part in.
  std::string role = "both";
  /// Ranks of this instance.
  uint32_t ranks = 1;
  /// Decode: addresses of prefill instances, if a request names none.
  std::vector<std::string> prefill;
};

class completions_server;

/// Serves the part of OpenAI's API that completes prompts: `POST /v1/completions`, `GET
/// /v1/models`, `GET /health`, and `GET /metrics`. `POST /v1/handoffs` hands a prompt's KV to
/// another instance. A prompt is a list of tokens, or a text, whose bytes are its tokens. Prints
/// the bound HOST:PORT.
/// @param options Their signal must outlive the server.
/// @returns the server, whose destructor answers the clients that are left; invalid_argument with a
/// sentence that names the address
result<std::shared_ptr<completions_server>> start_server(server_options options);

} // namespace llama
