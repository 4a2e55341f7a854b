#pragma once

#include "rpc/read_ahead.hpp"

#include <capnp/rpc-twoparty.h>
#include <capnp/serialize-async.h>
#include <kj/async-io.h>
#include <kj/vector.h>

#include <string>

namespace hicache {

/// Bounds for messages from peers.
capnp::ReaderOptions receive_bounds();

/// The messages of a connection. Small ones are written together, once there are enough or the loop
/// is idle. While a peer does not read its answers, it is not read either, so its requests cost no
/// more memory than it has sent.
class peer_stream final : public capnp::MessageStream {
public:
  explicit peer_stream(kj::AsyncIoStream& stream)
    : input_(stream), stream_(stream), inner_(stream),
      flushed_(kj::Promise<void>{kj::READY_NOW}.fork()) {}

  /// Sets the network whose send queue throttles reading.
  /// @param network Must outlive the messages of this stream.
  void throttle(capnp::TwoPartyVatNetwork& network) { network_ = &network; }

  /// What was wrong with the input; empty if nothing.
  const std::string& fault() const noexcept { return fault_; }

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>>
  tryReadMessage(kj::ArrayPtr<kj::AutoCloseFd> descriptors, capnp::ReaderOptions options,
                 kj::ArrayPtr<capnp::word> scratch) override;

  kj::Promise<void>
  writeMessage(kj::ArrayPtr<const int> descriptors,
               kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override;

  kj::Promise<void> writeMessages(
    kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override;

  kj::Maybe<int> getSendBufferSize() override { return inner_.getSendBufferSize(); }

  kj::Promise<void> end() override;

  using MessageStream::tryReadMessage;
  using MessageStream::writeMessage;
  using MessageStream::writeMessages;

private:
  /// Counts the peer's unfinished questions, since each keeps its answer.
  void count(capnp::MessageReader& message);

  /// Resolves when the peer has read enough of its answers.
  kj::Promise<void> has_room();

  /// Writes the gathered bytes, and those gathered meanwhile.
  kj::Promise<void> flush();

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> read(capnp::ReaderOptions options,
                                                          kj::ArrayPtr<capnp::word> scratch);

  read_ahead input_;
  kj::AsyncIoStream& stream_;
  capnp::AsyncIoMessageStream inner_;
  capnp::TwoPartyVatNetwork* network_ = nullptr;
  size_t questions_ = 0;
  std::string fault_;
  /// Set while reading waits for room.
  kj::Own<kj::PromiseFulfiller<void>> waiting_;
  /// Messages not written yet.
  kj::Vector<kj::byte> gathered_;
  bool is_writing_ = false;
  /// Resolves when the gathered bytes are written.
  kj::ForkedPromise<void> flushed_;
  kj::Promise<void> idle_flush_ = nullptr;
};

} // namespace hicache
