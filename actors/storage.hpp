#pragma once

#include "backends/lent_pages.hpp"
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
#include <vector>

namespace hicache {

/// Who writes a page that several ranks hold alike (`writer_of`).
struct page_writers {
  /// This rank, counted among those.
  uint32_t rank = 0;
  /// Ranks that share the writing; 1: this rank writes all of its pages.
  uint32_t ranks = 1;
};

/// Fixed settings of a storage actor.
struct storage_options {
  /// What this rank's objects are: model, geometry (pages with another fingerprint are other
  /// pages).
  std::string fingerprint;
  /// What this rank holds of each page; one object each. Together all of its heads.
  std::vector<head_group> groups;
  /// Where L2 pages lie, from `host_memory` on.
  pool_geometry host_geometry;
  /// L2; must outlive the actor.
  std::byte* host_memory = nullptr;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
  page_writers writers = {};
  /// Takes pages of L2 back before they are written to; null if none are lent.
  std::shared_ptr<lent_pages> lent = {};
};

/// A batch of pages whose objects are being moved.
struct open_move {
  caf::typed_response_promise<storage_outcome> promise;
  /// For each page whether its objects are among those moved; the others are another rank's.
  std::vector<bool> moved;
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

  /// The objects of a batch's pages: page by page, all groups of each.
  std::vector<page_key> object_names(const storage_batch& batch) const;

  /// The pieces of L2 that hold a group of a page, in object order.
  template <class Byte>
  std::vector<std::span<Byte>> parts_of(page_index page, const head_group& group) const;

  bool is_writer_of(const page_key& page) const;

  /// Keeps a promise until its objects are finished; the callback brings their outcome back to the
  /// actor.
  storage_queue::pages_callback await(open_move move);

  storage_actor::pointer self;
  std::optional<storage_options> options; // Set once, by storage().
  /// Of each of options->groups.
  std::vector<page_key> masks;
  std::unique_ptr<storage_queue> queue;
  uint64_t last_ticket = 0;
  std::map<uint64_t, caf::typed_response_promise<uint64_t>> counting;
  std::map<uint64_t, open_move> moving;
};

/// Owns one L3 backend behind a queue with worker threads of its own, and translates between pages
/// of L2 and objects, one for each head group. A page is there if all of its objects are; what
/// happened to it is what happened to the first of them that failed.
storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options, std::unique_ptr<storage_queue> queue);

} // namespace hicache
