#pragma once

#include "hicache/clock.hpp"
#include "messages/index_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// The member that has pages which others shall have, too.
struct copy_source {
  uint64_t member = 0;
  std::string host;
  /// False: it is about to leave, so that its own copies do not count.
  bool stays = true;
};

/// A page of the source.
struct wanted_copies {
  page_key key;
  /// Copies that there shall be, on different hosts.
  uint32_t copies = 1;
  /// A copy counts only once its holder has said that it keeps the pin.
  bool is_pinned = false;
  /// Members that have the page, as far as is known; the source may be among them.
  std::vector<uint64_t> holders;
  /// Members that have said that they have it, with its pin.
  std::vector<uint64_t> confirmed;
  /// Members that were asked in vain.
  std::vector<uint64_t> refused;
};

/// Whom to ask next to copy which pages of a batch, so that each gets as many copies as it wants:
/// members with a segment, on hosts that have no copy, those first that have the page already, and
/// else in the order of rendezvous hashing by the first page, so that the pages of a prefix stay
/// together. A source that leaves gives its pages to other hosts, or to members beside it if there
/// is no other host. A page that limits::copy_targets members refused is left alone. Pure: equal
/// arguments give equal answers.
/// @returns positions in `pages`, ascending, by member; empty if nothing is left to be done
std::map<uint64_t, std::vector<size_t>> plan_copies(std::span<const wanted_copies> pages,
                                                    std::span<const member_info> members,
                                                    const copy_source& source);

/// The pages that have fewer copies than they shall have, or whose pin fewer have; of a source that
/// leaves, those that nobody else has at all.
/// @returns positions in `pages`, ascending
std::vector<size_t> lacking_copies(std::span<const wanted_copies> pages,
                                   std::span<const member_info> members, const copy_source& source);

/// How long who had so many bytes copied waits before the next batch.
/// @pre bytes_per_second > 0
duration pause_after(uint64_t bytes, uint64_t bytes_per_second) noexcept;

} // namespace hicache
