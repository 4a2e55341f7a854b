#include "rpc/peer_stream.hpp"

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace hicache {
namespace {

/// One end of a pipe that counts what is written to it, or takes nothing.
class counted_end final : public kj::AsyncIoStream {
public:
  explicit counted_end(kj::Own<kj::AsyncIoStream> inner) : inner_(kj::mv(inner)) {}

  kj::Promise<size_t> tryRead(void* to, size_t least, size_t most) override {
    return inner_->tryRead(to, least, most);
  }

  kj::Promise<void> write(const void* bytes, size_t size) override {
    ++writes;
    if (is_broken)
      return KJ_EXCEPTION(DISCONNECTED, "broken");
    return inner_->write(bytes, size);
  }

  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    ++writes;
    return inner_->write(pieces);
  }

  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }

  void shutdownWrite() override { inner_->shutdownWrite(); }

  void abortRead() override { inner_->abortRead(); }

  int writes = 0;
  bool is_broken = false;

private:
  kj::Own<kj::AsyncIoStream> inner_;
};

/// Two peers and what is between them.
struct two_ends {
  /// Writes an answer of a number and so many bytes.
  kj::Promise<void> write(uint32_t number, size_t bytes = 16) {
    auto message = kj::heap<capnp::MallocMessageBuilder>();
    auto answer = message->initRoot<capnp::rpc::Message>().initReturn();
    answer.setAnswerId(number);
    answer.initException().initReason(static_cast<unsigned>(bytes));
    auto written = ours.writeMessage(*message);
    return written.attach(kj::mv(message));
  }

  /// @returns the number of the next answer, and its bytes; none at the end
  std::vector<size_t> read() {
    auto found = theirs.tryReadMessage().wait(scope);
    KJ_IF_MAYBE (message, found) {
      const auto answer = (*message)->getRoot<capnp::rpc::Message>().getReturn();
      return {answer.getAnswerId(), answer.getException().getReason().size()};
    }
    return {};
  }

  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  kj::TwoWayPipe pipe = kj::newTwoWayPipe();
  counted_end end{kj::mv(pipe.ends[0])};
  peer_stream ours{end};
  peer_stream theirs{*pipe.ends[1]};
};

TEST(PeerStreamTest, SmallMessagesAreWrittenTogether) {
  auto at = two_ends{};
  for (auto i = uint32_t{0}; i < 10; ++i)
    at.write(i).wait(at.scope);
  for (auto i = uint32_t{0}; i < 10; ++i)
    EXPECT_EQ(at.read(), (std::vector<size_t>{i, 16}));
  EXPECT_EQ(at.end.writes, 1);
}

TEST(PeerStreamTest, WritersWaitForAPeerThatReadsNothing) {
  auto at = two_ends{};
  auto last = kj::Promise<void>{kj::READY_NOW};
  auto sent = uint32_t{0};
  for (; sent < 1000 && last.poll(at.scope); ++sent)
    last = at.write(sent, 1000);
  EXPECT_LT(sent, 30u);
  for (auto i = uint32_t{0}; i < sent; ++i)
    EXPECT_EQ(at.read(), (std::vector<size_t>{i, 1000}));
  last.wait(at.scope);
}

TEST(PeerStreamTest, EveryMessageArrivesInOrderBeforeTheEnd) {
  auto loop = kj::EventLoop{};
  auto scope = kj::WaitScope{loop};
  for (auto seed = uint64_t{1}; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = std::mt19937_64{seed};
    auto both = kj::newTwoWayPipe();
    auto from = peer_stream{*both.ends[0]};
    auto to = peer_stream{*both.ends[1]};
    auto sizes = std::vector<size_t>(random() % 60);
    auto writing = kj::Promise<void>{kj::READY_NOW};
    for (auto& size : sizes) {
      size = random() % (random() % 4 == 0 ? 100'000 : 500);
      writing = writing.then([&from, size, waits = random() % 3 == 0] {
        auto message = kj::heap<capnp::MallocMessageBuilder>();
        message->initRoot<capnp::rpc::Message>().initReturn().initException().initReason(
          static_cast<unsigned>(size));
        auto done = from.writeMessage(*message).attach(kj::mv(message));
        return waits ? done.then([] { return kj::evalLast([] {}); }) : kj::mv(done);
      });
    }
    writing = writing.then([&from] { return from.end(); }).eagerlyEvaluate(nullptr);
    for (const auto size : sizes) {
      auto message = to.readMessage().wait(scope);
      ASSERT_EQ(
        message->getRoot<capnp::rpc::Message>().getReturn().getException().getReason().size(),
        size);
    }
    EXPECT_TRUE(to.tryReadMessage().wait(scope) == nullptr);
    writing.wait(scope);
  }
}

TEST(PeerStreamTest, WhoReadsLearnsThatWritingFailed) {
  auto at = two_ends{};
  auto reading = at.ours.tryReadMessage();
  at.end.is_broken = true;
  at.write(1).wait(at.scope);
  auto is_over = reading.then([](auto&&) { return true; }, [](kj::Exception&&) { return true; });
  EXPECT_TRUE(is_over.poll(at.scope));
}

} // namespace
} // namespace hicache
