#pragma once

#include "hicache/storage_backend.hpp"

#include <span>
#include <string>
#include <vector>

namespace hicache {

/// A store whose calls block: what a library without completions, such as a file system, is wrapped
/// as. storage_queue makes it a storage_backend. Calls may come from any thread, several at a time,
/// and answer per object, in order; errors as there. After a call has returned, the store touches
/// no part any more. Deadlines are looked at between objects, on the clock that the store was
/// opened with.
class blocking_store {
public:
  blocking_store() = default;
  blocking_store(const blocking_store&) = delete;
  blocking_store& operator=(const blocking_store&) = delete;
  virtual ~blocking_store() = default;

  virtual std::string name() const = 0;

  virtual store_capabilities capabilities() const { return {}; }

  /// Which of the objects the store holds. A store that cannot be reached, or not before the
  /// deadline, answers false.
  virtual std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) = 0;

  /// As storage_backend::read.
  virtual std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) = 0;

  /// As storage_backend::write. deadline_exceeded: nothing was changed.
  virtual std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) = 0;

  /// As storage_backend::remove.
  virtual std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) = 0;

  virtual backend_health health() = 0;
};

} // namespace hicache
