#include "rpc/read_ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace hicache {
namespace {

using byte_vector = std::vector<kj::byte>;

/// A stream that holds so many bytes, and gives them in pieces of at most some size.
class pieces final : public kj::AsyncInputStream {
public:
  pieces(size_t bytes, size_t most, uint64_t seed) : most_(most), random_(seed), bytes_(bytes) {
    std::ranges::generate(bytes_, [this] { return static_cast<kj::byte>(random_()); });
  }

  kj::Promise<size_t> tryRead(void* to, size_t least, size_t most) override {
    ++reads_;
    auto size = size_t{0};
    while (size < least && next_ < bytes_.size()) {
      const auto piece
        = std::min({size_t{1} + random_() % most_, most - size, bytes_.size() - next_});
      std::memcpy(static_cast<kj::byte*>(to) + size, bytes_.data() + next_, piece);
      size += piece;
      next_ += piece;
    }
    return size;
  }

  const byte_vector& bytes() const { return bytes_; }

  int reads() const { return reads_; }

private:
  size_t most_;
  std::mt19937_64 random_;
  byte_vector bytes_;
  size_t next_ = 0;
  int reads_ = 0;
};

TEST(ReadAheadTest, SmallMessagesAreReadTogether) {
  auto loop = kj::EventLoop{};
  auto scope = kj::WaitScope{loop};
  auto input = pieces{10 * 1008, size_t{1} << 20, 1};
  auto stream = read_ahead{input};
  auto got = byte_vector(input.bytes().size());
  for (auto at = got.data(); at != got.data() + got.size(); at += 1008) {
    stream.read(at, 8).wait(scope);
    stream.read(at + 8, 1000).wait(scope);
  }
  EXPECT_EQ(got, input.bytes());
  EXPECT_EQ(input.reads(), 1);
}

TEST(ReadAheadTest, NothingMayBeReadToNowhere) {
  auto loop = kj::EventLoop{};
  auto scope = kj::WaitScope{loop};
  auto input = pieces{8, 8, 1};
  auto stream = read_ahead{input};
  EXPECT_EQ(stream.tryRead(nullptr, 0, 0).wait(scope), 0u);
  EXPECT_EQ(input.reads(), 0);
}

TEST(ReadAheadTest, EveryByteComesOnceHoweverItIsAskedFor) {
  for (auto seed = uint64_t{1}; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto loop = kj::EventLoop{};
    auto scope = kj::WaitScope{loop};
    auto random = std::mt19937_64{seed};
    auto input = pieces{random() % 200'000, 1 + random() % 40'000, seed};
    auto stream = read_ahead{input};
    auto got = byte_vector{};
    for (auto is_over = false; !is_over;) {
      const auto least = 1 + random() % 20'000;
      auto part = byte_vector(least + random() % 40'000);
      const auto size = stream.tryRead(part.data(), least, part.size()).wait(scope);
      ASSERT_LE(size, part.size());
      is_over = size < least;
      got.insert(got.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(size));
    }
    ASSERT_EQ(got, input.bytes());
  }
}

} // namespace
} // namespace hicache
