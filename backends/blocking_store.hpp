#pragma once

#include "backends/object_parts.hpp"
#include "base/immovable.hpp"
#include "hicache/storage_backend.hpp"

#include <span>
#include <string>
#include <vector>

namespace hicache {

/// A store with blocking calls, for libraries without completions such as a file system;
/// storage_queue turns it into a storage_backend. Any thread may call, several at a time. Calls
/// answer per object, in order, with the errors of storage_backend. A call does not access the
/// parts after it has returned. Deadlines are checked between objects, on the store's clock.
class blocking_store : immovable {
public:
  virtual ~blocking_store() = default;

  virtual std::string name() const = 0;

  virtual store_capabilities capabilities() const { return {}; }

  /// Which of the objects the store holds; false if it cannot be reached before the deadline.
  virtual std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) = 0;

  /// As storage_backend::lookup. By default without places.
  virtual std::vector<result<store_place>> lookup(std::span<const page_key> keys,
                                                  time_point deadline) {
    auto places = std::vector<result<store_place>>{};
    places.reserve(keys.size());
    for (const auto found : exists(keys, deadline))
      places.push_back(found ? result<store_place>{} : fail(ec::not_found));
    return places;
  }

  /// As storage_backend::read. Every store has this or `read`.
  virtual std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) {
    auto answers = std::vector<result<void>>{};
    answers.reserve(pages.size());
    for (const auto& length : read(pages, part_lengths::exact, deadline))
      answers.push_back(length.map([](uint64_t) {}));
    return answers;
  }

  /// Whether `read` works. Constant over the store's lifetime.
  virtual bool tells_lengths() const { return false; }

  /// As get; the parts may be longer than their object if the rule says so
  /// (sized_reads::read_sized). Answers the objects' lengths.
  virtual std::vector<result<uint64_t>> read(std::span<const page_read> pages,
                                             part_lengths /*rule*/, time_point /*deadline*/) {
    return std::vector<result<uint64_t>>(pages.size(), fail(ec::unsupported));
  }

  /// As storage_backend::write. deadline_exceeded: nothing was changed.
  virtual std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) = 0;

  /// As storage_backend::remove.
  virtual std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) = 0;

  /// As storage_backend::watch_evictions.
  virtual bool watch_evictions(storage_backend::eviction_watch /*watch*/, bool /*wants_bytes*/) {
    return false;
  }

  /// As storage_backend::watch_losses.
  virtual bool watch_losses(storage_backend::loss_watch /*watch*/) { return false; }

  /// As storage_backend::list.
  virtual result<object_list> list(const std::string& /*from*/, time_point /*deadline*/) {
    return fail(ec::unsupported, name() + " cannot list its objects");
  }

  virtual backend_health health() = 0;
};

} // namespace hicache
