#include "backends/redis/object_reader.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

constexpr auto fingerprint = uint64_t{7};
constexpr auto chunk_bytes = uint64_t{4096};

using lengths = part_lengths;

/// The values of an object.
std::vector<page_bytes> values_of(const page_bytes& object, uint64_t size = chunk_bytes) {
  const auto whole = std::span<const std::byte>{object};
  const auto head = redis_head{{.fingerprint = fingerprint,
                                .key = key_of(1),
                                .length = object.size(),
                                .checksum = page_checksum({&whole, 1})},
                               static_cast<uint32_t>(size),
                               static_cast<uint32_t>(redis_chunks(object.size(), size))};
  auto values = std::vector<page_bytes>{};
  for (auto chunk = uint32_t{0}; chunk < head.chunks; ++chunk) {
    auto& value = values.emplace_back(chunk == 0 ? redis_head_bytes : 0);
    if (chunk == 0)
      encode_redis_head(head, std::span{value}.first<redis_head_bytes>());
    const auto bytes = whole.subspan(chunk * size, redis_chunk_length(head, chunk));
    value.insert(value.end(), bytes.begin(), bytes.end());
  }
  return values;
}

class ObjectReaderTest : public testing::Test {
protected:
  /// Reads these values into parts of so many bytes.
  result<uint64_t> read(const std::vector<page_bytes>& values, size_t room,
                        lengths rule = lengths::exact) {
    back_.assign(room, std::byte{0});
    page_ = {key_of(1), cut(back_, {room / 3, room / 3})};
    reader_.emplace(page_, fingerprint, chunk_bytes, rule);
    pass(values);
    return reader_->outcome();
  }

  void pass(const std::vector<page_bytes>& values) {
    reader_->begin_pass();
    for (auto chunk = uint32_t{0}; chunk < reader_->chunks() && chunk < values.size(); ++chunk)
      reader_->take(chunk, values[chunk]);
  }

  page_bytes back_;
  page_read page_;
  std::optional<object_reader> reader_;
};

TEST_F(ObjectReaderTest, ReadsObjectsOfOneValueAndOfSeveral) {
  for (const auto size : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{12288}}) {
    const auto object = bytes_of(size, size);
    EXPECT_EQ(read(values_of(object), size).value(), size);
    EXPECT_EQ(back_, object);
  }
}

TEST_F(ObjectReaderTest, AShorterObjectIsReadOnlyWhereThatIsAllowed) {
  const auto object = bytes_of(1, 5000);
  EXPECT_EQ(code_of(read(values_of(object), 9000)), ec::invalid_argument);
  EXPECT_EQ(read(values_of(object), 9000, lengths::bounded).value(), 5000u);
  back_.resize(5000);
  EXPECT_EQ(back_, object);
  EXPECT_EQ(code_of(read(values_of(object), 4999, lengths::bounded)), ec::invalid_argument);
}

TEST_F(ObjectReaderTest, ChunksOfAnotherSizeTakeASecondPass) {
  const auto object = bytes_of(1, 30000);
  for (const auto size : {uint64_t{8192}, uint64_t{16384}}) {
    const auto values = values_of(object, size);
    EXPECT_FALSE(read(values, object.size()));
    ASSERT_TRUE(reader_->needs_another_pass());
    EXPECT_EQ(reader_->chunks(), values.size());
    pass(values);
    EXPECT_TRUE(reader_->outcome());
    EXPECT_EQ(back_, object);
  }
}

TEST_F(ObjectReaderTest, AMissingValueIsAMiss) {
  auto values = values_of(bytes_of(1, 10000));
  EXPECT_EQ(code_of(read({}, 10000)), ec::not_found);
  EXPECT_FALSE(reader_->has_head());
  values.pop_back();
  EXPECT_EQ(code_of(read(values, 10000)), ec::not_found);
  EXPECT_TRUE(reader_->has_head()) << "the rest of it can be removed";
}

TEST_F(ObjectReaderTest, AnyWrongByteIsFound) {
  const auto values = values_of(bytes_of(1, 10000));
  for (auto chunk = size_t{0}; chunk < values.size(); ++chunk)
    for (const auto at : {size_t{0}, values[chunk].size() / 2, values[chunk].size() - 1}) {
      auto damaged = values;
      damaged[chunk][at] ^= std::byte{1};
      EXPECT_EQ(code_of(read(damaged, 10000)), ec::corrupt_page) << chunk << ' ' << at;
    }
  auto longer = values;
  longer[1].push_back(std::byte{0});
  EXPECT_EQ(code_of(read(longer, 10000)), ec::corrupt_page);
}

TEST_F(ObjectReaderTest, ABrokenConnectionBeginsAgain) {
  const auto object = bytes_of(1, 10000);
  auto values = values_of(object);
  values.pop_back();
  EXPECT_FALSE(read(values, object.size()));
  pass(values_of(object));
  EXPECT_TRUE(reader_->outcome());
  EXPECT_EQ(back_, object);
}

} // namespace
} // namespace hicache::test
