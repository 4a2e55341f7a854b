#pragma once

#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace hicache {

/// Flags of `hicache-bench transfer`.
struct transfer_flags {
  std::string layout = "page_first";
  std::string io_backend = "direct";
  uint32_t pages = 32;
  uint32_t page_size = 64;
  std::string attention = "mha";
  uint32_t layers = 32;
  /// 0: the default of the attention kind; likewise for the next three.
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t v_head_dim = 0;
  uint32_t index_key_bytes = 0;
  std::string dtype = "bf16";
  std::string device = "auto";
  uint32_t io_sms = 4;
  uint32_t threads = 1;
  bool fragmented = false;
  double seconds = 1;
  bool json = false;
};

void add_transfer_flags(CLI::App& app, transfer_flags& flags);

/// Measures copies between L1 and L2 and prints the result.
/// @returns an exit code: exit_failed if a copy failed or bytes were lost
result<int> bench_transfer(const transfer_flags& flags);

} // namespace hicache
