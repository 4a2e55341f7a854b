#include "backends/disk/disk_recovery.hpp"

#include "backends/disk/disk_transfers.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"

#include <absl/container/flat_hash_set.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Segments that are read at a time: headers lie far apart, so each read waits for the disk.
constexpr auto readers_max = size_t{16};

struct found_record {
  uint32_t segment = 0;
  uint64_t offset = 0;
  disk_record record;
};

/// Reads blocks to the start of the channel's memory.
/// @returns empty if that failed
std::span<const std::byte> read_now(disk_channel& channel, uint32_t segment, uint64_t offset,
                                    size_t bytes) {
  const auto to = channel.memory().first(bytes);
  channel.read(segment, offset, to, 0);
  return channel.wait().error == 0 ? std::span<const std::byte>{to} : std::span<const std::byte>{};
}

/// The header of a record; an error if none is there.
result<disk_record> header_at(disk_channel& channel, uint32_t segment, uint64_t segment_bytes,
                              uint64_t offset) {
  if (offset + disk_block_bytes > segment_bytes)
    return fail(ec::not_found);
  auto bytes = read_now(channel, segment, offset, disk_block_bytes);
  const auto length = disk_header_at(bytes);
  if (!length || offset + *length > segment_bytes)
    return fail(ec::not_found);
  if (*length > bytes.size())
    bytes = read_now(channel, segment, offset, *length);
  return decode_disk_record(bytes);
}

/// Whether the bytes of an object are those that its record describes.
bool verifies(disk_channel& channel, const disk_log::place& where) {
  auto extents = std::vector<disk_extent>{};
  const auto end = where.offset + disk_blocks_for(where.length);
  for (auto at = where.offset; at < end; at += disk_slot_bytes)
    extents.push_back(
      {where.segment, at, static_cast<size_t>(std::min<uint64_t>(disk_slot_bytes, end - at))});
  auto sum = running_checksum{};
  auto left = where.length;
  auto is_read = true;
  read_extents(channel, extents, [&](size_t, std::span<const std::byte> bytes, int error) {
    const auto used = static_cast<size_t>(std::min<uint64_t>(left, bytes.size()));
    sum.add(bytes.first(used));
    left -= used;
    is_read = is_read && error == 0;
  });
  return is_read && sum.value() == where.checksum;
}

result<std::vector<found_record>>
read_all(disk_device& device, const std::vector<uint32_t>& segments, uint64_t segment_bytes) {
  auto channels = std::vector<std::unique_ptr<disk_channel>>{};
  while (channels.size() < std::min(readers_max, segments.size())) {
    auto channel = HICACHE_TRY(device.open_channel(disk_slot_bytes));
    channels.push_back(std::move(channel));
  }
  auto found = std::vector<std::vector<found_record>>(segments.size());
  auto next = std::atomic<size_t>{0};
  {
    auto readers = std::vector<std::jthread>{};
    for (const auto& channel : channels)
      readers.emplace_back([&] {
        for (auto k = next++; k < segments.size(); k = next++)
          visit_records(*channel, segments[k], segment_bytes,
                        [&](uint64_t offset, disk_record record) {
                          found[k].push_back({segments[k], offset, std::move(record)});
                        });
      });
  }
  auto records = std::vector<found_record>{};
  for (auto& each : found)
    std::ranges::move(each, std::back_inserter(records));
  std::ranges::sort(records, {}, [](const found_record& x) { return x.record.sequence; });
  return records;
}

/// Whether one of the segments was written in another version of the format.
bool has_other_version(disk_device& device, const std::vector<uint32_t>& segments) {
  const auto channel = device.open_channel(disk_slot_bytes);
  return channel && std::ranges::any_of(segments, [&](uint32_t segment) {
           return is_disk_header_of_other_version(
             read_now(**channel, segment, 0, disk_block_bytes));
         });
}

/// Copies that do not verify, of records that may not have been on the disk.
result<std::vector<disk_record::removal>>
find_torn(disk_device& device, std::span<const found_record> records, uint64_t durable,
          const absl::flat_hash_set<disk_log::copy>& gone) {
  const auto channel = HICACHE_TRY(device.open_channel(disk_channel_bytes));
  auto torn = std::vector<disk_record::removal>{};
  for (const auto& [segment, offset, record] : records) {
    if (record.sequence <= durable)
      continue;
    auto at = offset + disk_header_bytes(record);
    for (const auto& object : record.objects) {
      if (!gone.contains({record.generation, at}) && !verifies(*channel, {segment, at, object}))
        torn.push_back({object.key, record.generation, at});
      at += disk_blocks_for(object.length);
    }
  }
  return torn;
}

} // namespace

void visit_records(disk_channel& channel, uint32_t segment, uint64_t segment_bytes,
                   const std::function<void(uint64_t offset, disk_record record)>& visit) {
  auto generation = uint64_t{0};
  auto sequence = uint64_t{0};
  for (auto offset = uint64_t{0};;) {
    auto record = header_at(channel, segment, segment_bytes, offset);
    const auto is_next
      = record && record->sequence > sequence && (offset == 0 || record->generation == generation);
    if (!is_next)
      return;
    generation = record->generation;
    sequence = record->sequence;
    const auto bytes = disk_record_bytes(*record);
    if (offset + bytes > segment_bytes)
      return;
    visit(offset, std::move(*record));
    offset += bytes;
  }
}

result<std::vector<disk_record::removal>> recover_log(disk_log& log, disk_device& device,
                                                      const std::string& name, uint32_t segments,
                                                      uint64_t segment_bytes) {
  auto present = device.segments();
  while (!present.empty() && present.back() >= segments) {
    HICACHE_TRY(device.remove(present.back()));
    present.pop_back();
  }
  // A segment that somebody removed.
  for (auto i = uint32_t{0}; i < present.size(); ++i)
    if (present[i] != i) {
      HICACHE_TRY(device.create(i));
      present.insert(present.begin() + i, i);
    }
  for (const auto segment : present)
    log.add_segment(segment);
  const auto records = HICACHE_TRY(read_all(device, present, segment_bytes));
  if (records.empty() && has_other_version(device, present))
    spdlog::warn("{} is of another version: it begins with no objects", name);
  auto durable = uint64_t{0};
  auto gone = absl::flat_hash_set<disk_log::copy>{};
  for (const auto& each : records) {
    durable = std::max(durable, each.record.durable);
    for (const auto& removal : each.record.removals)
      gone.emplace(removal.generation, removal.offset);
  }
  auto torn = HICACHE_TRY(find_torn(device, records, durable, gone));
  for (const auto& removal : torn)
    gone.emplace(removal.generation, removal.offset);
  for (const auto& each : records)
    log.recover(each.segment, each.offset, each.record, gone);
  log.end_recovery(durable);
  return torn;
}

} // namespace hicache
