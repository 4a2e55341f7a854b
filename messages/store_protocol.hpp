#pragma once

#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Messages between a rank and a store in another process (schema: store_protocol.capnp).
namespace hicache {

inline constexpr uint32_t store_protocol_version = 1;

/// Objects in one call, or in a part of a list, at most.
inline constexpr size_t store_request_objects = 1024;

/// Bytes of one message at most.
inline constexpr size_t store_message_bytes = size_t{4} << 20;

struct store_hello {
  uint32_t version = store_protocol_version;
  uint64_t window_bytes = 0;
  /// A JSON object.
  std::string options;

  friend bool operator==(const store_hello&, const store_hello&) = default;
};

struct store_welcome {
  /// Why the store cannot be used; empty if it can.
  std::string error;
  std::string name;
  bool survives_restarts = false;
  bool is_shared = false;
  /// Reads may have room for more bytes than the object has.
  bool tells_lengths = false;
  uint32_t preferred_batch = 0;
  uint64_t preferred_object_bytes = 0;
  /// It can remove objects.
  bool removes = false;
  /// It can list its objects.
  bool lists = false;

  friend bool operator==(const store_welcome&, const store_welcome&) = default;
};

enum class store_request_kind : uint8_t { lookup, read, write, remove, health, list };

/// An object, and where it lies in the window.
struct store_slot {
  page_key key;
  page_key parent = {};
  uint64_t offset = 0;
  uint64_t bytes = 0;

  friend bool operator==(const store_slot&, const store_slot&) = default;
};

struct store_request {
  uint64_t number = 0;
  store_request_kind kind = store_request_kind::lookup;
  uint32_t milliseconds = 0;
  std::vector<store_slot> objects = {};
  /// Of a list: where it begins; empty for the first part.
  std::string start = {};

  friend bool operator==(const store_request&, const store_request&) = default;
};

enum class store_status : uint8_t { done, present, absent, full, failed, unsupported, misfit };

struct store_outcome {
  store_status status = store_status::done;
  /// Of a read: the object's length.
  uint64_t bytes = 0;
  std::string detail;

  friend bool operator==(const store_outcome&, const store_outcome&) = default;
};

/// An object in a part of a list.
struct store_listed {
  page_key key;
  uint64_t bytes = 0;

  friend bool operator==(const store_listed&, const store_listed&) = default;
};

struct store_answer {
  uint64_t number = 0;
  /// Why the whole call failed; empty if it did not.
  std::string error;
  std::vector<store_outcome> objects;
  /// Of health.
  bool is_ok = false;
  std::string detail;
  /// Of a list: some objects, and where the next part begins; empty after the last one.
  std::vector<store_listed> listed;
  std::string next;

  friend bool operator==(const store_answer&, const store_answer&) = default;
};

} // namespace hicache
