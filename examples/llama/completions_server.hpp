#pragma once

#include "examples/llama/engine.hpp"
#include "hicache/error.hpp"

#include <prometheus/registry.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama {

struct server_options {
  /// Gets the server's metrics, and is what `GET /metrics` shows.
  std::shared_ptr<prometheus::Registry> registry;
  /// HOST:PORT; port 0 picks a free one.
  std::string listen;
  /// Name of the model, as clients see it.
  std::string model;
  uint64_t vocabulary = 0;
  /// Longest sequence, in tokens: of the model, and of the device pool.
  uint64_t positions = 0;
  /// Of rank 0.
  llama_engine engine;
  /// "both", "prefill" or "decode": which handoffs of KV the instance takes part in.
  std::string role;
  /// Ranks of this instance.
  uint32_t ranks = 1;
  /// Decode: addresses of prefill instances, if a request names none.
  std::vector<std::string> prefill;
};

/// The part of OpenAI's API that completes prompts: `POST /v1/completions`, `GET /v1/models`,
/// `GET /health`, and `GET /metrics`. `POST /v1/handoffs` hands a prompt's KV to another instance.
/// A prompt is a list of tokens, or a text, whose bytes are its tokens.
class completions_server {
public:
  /// @returns invalid_argument with a sentence that names the address
  static result<std::unique_ptr<completions_server>> start(server_options options);

  virtual ~completions_server() = default;

  /// Answers clients from now on also if the engine does not: ranks that died make it wait.
  virtual void stop() = 0;

  /// The bound HOST:PORT.
  virtual const std::string& address() const = 0;
};

} // namespace llama
