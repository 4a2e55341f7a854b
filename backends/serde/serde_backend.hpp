#pragma once

#include "backends/serde/object_codec.hpp"
#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

struct serde_options {
  /// What is done to objects. `none`: nothing, and the other options have no effect.
  serde::object_codec_options codec;
  /// Where the keys for aes-256-gcm come from: one of both. A file, or a command of /bin/sh that
  /// prints them; key_ring::parse has the format. Read when the store is opened.
  std::string key_file;
  std::string key_command;
  /// Threads that encode and decode: 1 to 64.
  size_t codec_threads = 2;
  /// Memory for encoded objects on their way, in bytes: at least the longest object and 4 KiB.
  /// Each thread also uses up to three times the longest object.
  uint64_t codec_bytes = uint64_t{256} << 20;
};

/// Puts codecs in front of a store: objects are encoded before the store writes them and decoded
/// after it has read them, on threads of its own. The store sees neither the memory of the callers'
/// parts nor the objects' own names (object_codec::object_name).
///
/// An object that does not decode is removed from the store, and counts as corrupt. A batch moves
/// in chunks, as memory becomes free. When a batch expires, it is answered as soon as no thread
/// uses its parts, whatever the store does: a store that hangs keeps only memory of the decorator.
/// Write batches are not ordered, so `orders_writes` is false.
///
/// It tells what the store evicts, decoded on the store's thread; but with fp8 no bytes.
///
/// @param store Opened, and not used before. It gets the decorator's memory to register.
/// @param clock Must outlive the result.
/// @returns the store itself if there is no codec; invalid_argument if an option is out of range;
/// unsupported if objects are to be compressed but the store cannot tell their lengths
/// (sized_reads); as object_codec::make, read_key_file and run_key_command
result<std::unique_ptr<storage_backend>> make_serde_backend(const serde_options& options,
                                                            std::unique_ptr<storage_backend> store,
                                                            const clock_source& clock);

} // namespace hicache
