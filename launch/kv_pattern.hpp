#pragma once

#include "gpu/device.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// Stands in for a model's attention: KV bytes are a function of the whole prefix before a token,
/// the layer, the part (K, V, latent or index key) and the global head. A page in the wrong place,
/// on the wrong rank or behind the wrong prefix is thus detected. Single-threaded.
class kv_pattern {
public:
  /// Model id of the pattern for --model-id, distinct from that of real weights. Contains a
  /// version, which must be increased whenever the pattern's bytes change.
  /// @param model The model that the pattern stands for; may be empty.
  static std::string model_id(std::string_view model);

  /// @param geometry L1, layer_first; @param memory its memory. Both outlive the object.
  /// @param first_head The rank's first head in the model; 0 for attention without heads.
  kv_pattern(const pool_geometry& geometry, device_memory& memory, bool host_addressable,
             uint32_t first_head);

  /// Hash of the prefix of `tokens` that ends with token i, for each i; computed once per request.
  static std::vector<uint64_t> prefix_hashes(std::span<const token_id> tokens, uint64_t seed);

  /// "Computes" tokens [begin, end) into the request's pages.
  /// @param pages The pages of the whole request, in prefix order.
  /// @returns copy_failed if the device fails
  result<void> compute(std::span<const uint64_t> hashes, std::span<const page_index> pages,
                       uint64_t begin, uint64_t end);

  /// Checks every byte of a whole page of the request.
  /// @param position Index of the page within the request.
  /// @returns whether all bytes are right; copy_failed if the device fails
  result<bool> check(std::span<const uint64_t> hashes, std::span<const page_index> pages,
                     uint64_t position);

private:
  /// The expected bytes of one token's row.
  void fill_row(uint64_t hash, uint32_t layer, kv_part part, std::span<std::byte> row) const;

  const pool_geometry& geometry_;
  device_memory& memory_;
  bool host_addressable_;
  uint32_t first_head_;
  std::vector<std::byte> expected_;
  std::vector<std::byte> staging_;
};

} // namespace hicache
