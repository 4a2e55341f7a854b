#pragma once

#include "hicache/ids.hpp"
#include "messages/type_ids.hpp"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

/// Page bytes in transit between a node and its clients on other machines. Actors pass only
/// pointers to them.
namespace hicache {

/// A part of a reserved page.
struct page_piece {
  page_key key;
  uint32_t offset = 0;
  uint32_t length = 0;

  friend bool operator==(const page_piece&, const page_piece&) = default;
};

/// A client's write; the bytes of each page arrive in order. At most limits::transfer_ranges pieces
/// and limits::transfer_bytes.
struct page_upload {
  uint64_t reservation = 0;
  std::vector<page_piece> pieces;
  /// Of the pieces, concatenated.
  std::vector<std::byte> bytes;
};

/// A part of a page at its leased place.
struct page_range {
  page_key key;
  /// As in page_place.
  uint64_t place = 0;
  uint32_t generation = 0;
  uint32_t offset = 0;
  uint32_t length = 0;

  friend bool operator==(const page_range&, const page_range&) = default;
};

/// Bounded like page_upload.
using page_ranges = std::vector<page_range>;

/// What a read found at a place. The values are part of the protocol.
enum class range_status : uint8_t {
  /// The page was removed.
  gone = 0,
  there = 1,
  /// The header is damaged or belongs to another page.
  damaged = 2,
};

/// From the header of the page of a range.
struct range_origin {
  range_status status = range_status::gone;
  uint64_t fingerprint = 0;
  /// page_checksum of the whole object.
  uint64_t checksum = 0;

  friend bool operator==(const range_origin&, const range_origin&) = default;
};

/// Reply to page_ranges.
struct page_download {
  std::vector<range_origin> origins;
  /// Of the ranges, concatenated; unspecified for those that are not `there`.
  std::vector<std::byte> bytes;
};

using page_upload_ptr = std::shared_ptr<const page_upload>;
using page_ranges_ptr = std::shared_ptr<const page_ranges>;
using page_download_ptr = std::shared_ptr<const page_download>;

/// Messages that the proxy of a node on another machine accepts besides those of a node_actor. See
/// page_exchange for their handling by the node.
using page_carrier_actor = caf::typed_actor<
  // Writes to reserved pages.
  caf::replies_to<atom::set, page_upload_ptr>::with<atom::ok>,
  // Reads leased pages.
  caf::replies_to<atom::get, page_ranges_ptr>::with<page_download_ptr>>;

} // namespace hicache

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_upload_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_ranges_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_download_ptr)
