#pragma once

#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_log.hpp"
#include "base/page_checksum.hpp"
#include "messages/disk_record.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/disk/losing_disk.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace hicache::test {

/// Options of a store for exactly so many bytes of objects.
inline disk_options options_for(uint64_t live_bytes, uint64_t segment_bytes) {
  auto options = disk_options{};
  options.name = "disk";
  options.segment_bytes = segment_bytes;
  options.live_bytes = live_bytes;
  options.segments = static_cast<uint32_t>(static_cast<double>(live_bytes) / disk_log::live_share
                                           / static_cast<double>(segment_bytes))
                     + disk_log::segments_min;
  return options;
}

inline std::unique_ptr<blocking_store> open_store(disk_options options, disk_image& image,
                                                  const clock_source& clock) {
  auto store = make_disk_backend(std::move(options), std::make_unique<losing_disk>(image), clock);
  EXPECT_TRUE(store) << store.error().detail;
  return std::move(store.value());
}

/// The header of a record without removals as version 2 of the format had it: in words of Cap'n
/// Proto, without tenants.
inline page_bytes header_of_version_2(const disk_record& record) {
  const auto objects = record.objects.size();
  // What points to a struct of so many words of data and pointers.
  const auto pointer = [](uint64_t distance, uint64_t data, uint64_t pointers) {
    return distance << 2 | data << 32 | pointers << 48;
  };
  // The list's pointer has the kind 1, the distance 1 and the size 7: of structs.
  const auto list = uint64_t{1} | uint64_t{1} << 2 | uint64_t{7} << 32 | 5 * objects << 35;
  auto words = std::vector<uint64_t>{
    pointer(0, 3, 2),      record.generation, record.sequence, record.durable, list, 0,
    pointer(objects, 3, 2)};
  // Behind an object's first pointer come its second one, the objects that follow, and 8 words of
  // keys of each that goes before.
  for (auto i = size_t{0}; i < objects; ++i) {
    const auto& object = record.objects[i];
    const auto distance = 1 + 5 * (objects - i - 1) + 8 * i;
    words.insert(words.end(), {object.length, object.checksum, object.fingerprint,
                               pointer(distance, 4, 0), pointer(distance + 3, 4, 0)});
  }
  for (const auto& object : record.objects)
    for (const auto& key : {object.key, object.parent}) {
      words.resize(words.size() + 4);
      std::memcpy(&words[words.size() - 4], key.bytes.data(), key.bytes.size());
    }
  // Before the words, how many they are in the only segment of the message.
  words.insert(words.begin(), uint64_t{words.size()} << 32);
  const auto message = std::as_bytes(std::span{words});
  auto header = page_bytes(disk_blocks_for(24 + message.size()));
  auto at = header.data();
  const auto put = [&at](auto number) {
    std::memcpy(at, &number, sizeof(number));
    at += sizeof(number);
  };
  put(uint32_t{0x44564b48});
  put(uint16_t{2});
  put(static_cast<uint16_t>(header.size() / disk_block_bytes));
  put(static_cast<uint32_t>(message.size()));
  put(uint32_t{0});
  put(page_checksum({&message, 1}));
  std::memcpy(at, message.data(), message.size());
  return header;
}

} // namespace hicache::test
