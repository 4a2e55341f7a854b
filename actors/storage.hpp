#pragma once

#include "backends/storage_queue.hpp"
#include "base/clock.hpp"
#include "cache/geometry.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Fixed settings of a storage actor.
struct storage_options {
  /// What this rank's objects are: model, geometry (pages with another fingerprint are other
  /// pages).
  std::string fingerprint;
  /// Which part of each page this rank holds ("heads 0+4").
  std::string shard;
  /// Where L2 pages lie, from `host_memory` on.
  pool_geometry host_geometry;
  /// L2; must outlive the actor.
  std::byte* host_memory = nullptr;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates storage
struct storage_state {
  static inline constexpr auto name = "storage";

  explicit storage_state(storage_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<uint64_t> exists(const storage_batch& batch, caf::timespan timeout);

  caf::result<storage_outcome> get(const storage_batch& batch, caf::timespan timeout);

  caf::result<storage_outcome> set(const storage_batch& batch, caf::timespan timeout);

  caf::result<storage_outcome> remove(const storage_batch& batch, caf::timespan timeout);

  void finish(const storage_completion& completion);

  // -- internal steps ---------------------------------------------------------

  /// The name under which this rank's part of a page is stored.
  page_key object_name(const page_key& page) const;

  std::vector<page_key> object_names(const storage_batch& batch) const;

  /// The pieces of L2 that hold a page, in object order.
  template <class Byte>
  std::vector<std::span<Byte>> parts_of(page_index page) const;

  /// Keeps a promise until its batch is finished; the callback brings the outcome back to the
  /// actor.
  storage_queue::pages_callback await(caf::typed_response_promise<storage_outcome> promise);

  storage_actor::pointer self;
  std::optional<storage_options> options; // Set once, by storage().
  std::unique_ptr<storage_queue> queue;
  uint64_t last_ticket = 0;
  std::map<uint64_t, caf::typed_response_promise<uint64_t>> counting;
  std::map<uint64_t, caf::typed_response_promise<storage_outcome>> moving;
};

/// Owns one L3 backend behind a queue with worker threads of its own, and translates between pages
/// of L2 and objects.
storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options, std::unique_ptr<storage_queue> queue);

} // namespace hicache
