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

/// The member whose pages are to be copied to others.
struct copy_source {
  uint64_t member = 0;
  std::string host;
  /// False: it is about to leave, so its own copies do not count.
  bool stays = true;
};

/// A page of the source.
struct wanted_copies {
  page_key key;
  /// Desired number of copies, on different hosts.
  uint32_t copies = 1;
  /// A copy counts only once its holder has confirmed the pin.
  bool is_pinned = false;
  /// Known holders of the page; may include the source.
  std::vector<uint64_t> holders;
  /// Members that confirmed that they have it, with its pin.
  std::vector<uint64_t> confirmed;
  /// Members that refused or failed.
  std::vector<uint64_t> refused;
};

/// Selects the members to ask next to copy pages of a batch, so that each page gets its desired
/// copies: members with a segment, on hosts without a copy; first those that already have the page,
/// then by rendezvous hashing of the first page, so that the pages of a prefix stay together. The
/// pages of a leaving source go to other hosts, or to members beside it if there is no other host.
/// Skips pages that limits::copy_targets members refused. Pure: equal arguments give equal answers.
/// @returns positions in `pages`, ascending, by member; empty if nothing is left to do
std::map<uint64_t, std::vector<size_t>> plan_copies(std::span<const wanted_copies> pages,
                                                    std::span<const member_info> members,
                                                    const copy_source& source);

/// The pages with fewer copies, or fewer pinned copies, than desired; for a leaving source, those
/// without any other holder.
/// @returns positions in `pages`, ascending
std::vector<size_t> lacking_copies(std::span<const wanted_copies> pages,
                                   std::span<const member_info> members, const copy_source& source);

/// Pause before the next batch after copying this many bytes.
/// @pre bytes_per_second > 0
duration pause_after(uint64_t bytes, uint64_t bytes_per_second) noexcept;

} // namespace hicache
