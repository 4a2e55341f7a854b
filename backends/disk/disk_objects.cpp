#include "backends/disk/disk_objects.hpp"

#include "backends/disk/disk_transfers.hpp"
#include "backends/object_parts.hpp"
#include "base/page_checksum.hpp"
#include "base/system_message.hpp"

#include <cstring>

namespace hicache {

namespace {

/// Copies the bytes of one object after the other to its parts.
class object_filler {
public:
  void take(disk_read& object, std::span<const std::byte> bytes, int error) {
    if (object_ != &object) {
      object_ = &object;
      sum_ = {};
      done_ = 0;
      error_ = 0;
    }
    error_ = error_ == 0 ? error : error_;
    sum_.copy(bytes, part_of(object.parts, done_, bytes.size()));
    done_ += bytes.size();
    if (done_ < object.where.length)
      return;
    if (error_ != 0)
      object.outcome = fail(ec::io_failure, system_message(error_));
    else if (sum_.value() != object.where.checksum)
      object.outcome = fail(ec::corrupt_page, "the checksum of the object does not match");
    else
      object.outcome = object.where.length;
  }

private:
  const disk_read* object_ = nullptr;
  running_checksum sum_;
  uint64_t done_ = 0;
  int error_ = 0;
};

} // namespace

void read_objects(disk_channel& channel, std::span<disk_read* const> objects) {
  auto extents = std::vector<disk_extent>{};
  /// What an extent has of an object.
  struct piece {
    size_t object = 0;
    size_t extent = 0;
    size_t first = 0;
    size_t bytes = 0;
  };
  auto pieces = std::vector<piece>{};
  for (auto i = size_t{0}; i < objects.size(); ++i) {
    const auto& where = objects[i]->where;
    auto left = where.length;
    if (left == 0)
      pieces.push_back({i, extents.size(), 0, 0});
    for (auto at = where.offset; left > 0;) {
      const auto follows = !extents.empty() && extents.back().segment == where.segment
                           && extents.back().offset + extents.back().bytes == at
                           && extents.back().bytes < disk_slot_bytes;
      if (!follows)
        extents.push_back({where.segment, at, 0});
      auto& extent = extents.back();
      const auto bytes = static_cast<size_t>(
        std::min<uint64_t>(disk_blocks_for(left), disk_slot_bytes - extent.bytes));
      const auto used = static_cast<size_t>(std::min<uint64_t>(left, bytes));
      pieces.push_back({i, extents.size() - 1, extent.bytes, used});
      extent.bytes += bytes;
      at += bytes;
      left -= used;
    }
  }
  auto next = size_t{0};
  auto into = object_filler{};
  const auto take = [&](size_t extent, std::span<const std::byte> bytes, int error) {
    for (; next < pieces.size() && pieces[next].extent == extent; ++next) {
      const auto& piece = pieces[next];
      into.take(*objects[piece.object], bytes.subspan(piece.first, piece.bytes), error);
    }
  };
  read_extents(channel, extents, take);
  take(extents.size(), {}, 0); // Empty objects at the end.
}

int write_record(disk_channel& channel, const disk_log::slot& where, disk_record& record,
                 std::span<const written_object> objects) {
  const auto header_bytes = disk_header_bytes(record);
  auto writer = disk_writer{channel, where.segment, where.offset + header_bytes};
  for (auto i = size_t{0}; i < objects.size(); ++i) {
    auto sum = running_checksum{};
    for (auto part : std::span{objects[i].parts})
      while (!part.empty()) {
        const auto room = writer.room();
        const auto bytes = std::min(room.size(), part.size());
        const auto to = room.first(bytes);
        sum.copy(part.first(bytes), {&to, 1});
        writer.filled(bytes);
        part = part.subspan(bytes);
      }
    writer.pad();
    record.objects[i].checksum = sum.value();
  }
  auto header = std::vector<std::byte>(header_bytes);
  encode_disk_record(record, header);
  writer.seek(where.offset);
  for (auto rest = std::span<const std::byte>{header}; !rest.empty();) {
    const auto room = writer.room();
    const auto bytes = std::min(room.size(), rest.size());
    std::memcpy(room.data(), rest.data(), bytes);
    writer.filled(bytes);
    rest = rest.subspan(bytes);
  }
  return writer.finish();
}

} // namespace hicache
