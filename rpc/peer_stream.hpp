#pragma once

#include "rpc/read_ahead.hpp"

#include <capnp/rpc-twoparty.h>
#include <capnp/serialize-async.h>
#include <kj/async-io.h>
#include <kj/vector.h>

#include <string>

namespace hicache {

/// Bounds for what is received from peers.
capnp::ReaderOptions receive_bounds();

/// The messages of a connection, one after the other. Small ones are written together: when there
/// are enough of them, or when the loop has nothing else to do. While a peer does not take what it
/// is sent, nothing more is read from it, so that its requests cost no more memory than it has
/// sent.
class peer_stream final : public capnp::MessageStream {
public:
  explicit peer_stream(kj::AsyncIoStream& stream)
    : input_(stream), stream_(stream), inner_(stream),
      flushed_(kj::Promise<void>{kj::READY_NOW}.fork()) {}

  /// What holds the messages that wait to be sent; from now on reading waits for it.
  /// @param network Must outlive the messages of this stream.
  void throttle(capnp::TwoPartyVatNetwork& network) { network_ = &network; }

  /// What was wrong with what came; empty if nothing was.
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
  /// Counts questions that the peer asked and did not finish: each keeps its answer.
  void count(capnp::MessageReader& message);

  /// Ready when the peer has taken enough of what it is sent.
  kj::Promise<void> has_room();

  /// Writes what has gathered, and then what gathers meanwhile.
  kj::Promise<void> flush();

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> read(capnp::ReaderOptions options,
                                                          kj::ArrayPtr<capnp::word> scratch);

  read_ahead input_;
  kj::AsyncIoStream& stream_;
  capnp::AsyncIoMessageStream inner_;
  capnp::TwoPartyVatNetwork* network_ = nullptr;
  size_t questions_ = 0;
  std::string fault_;
  /// Set while a reader waits for room.
  kj::Own<kj::PromiseFulfiller<void>> waiting_;
  /// Messages that are not written yet.
  kj::Vector<kj::byte> gathered_;
  bool is_writing_ = false;
  /// When what has gathered is written.
  kj::ForkedPromise<void> flushed_;
  kj::Promise<void> idle_flush_ = nullptr;
};

} // namespace hicache
