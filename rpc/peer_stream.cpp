#include "rpc/peer_stream.hpp"

#include "rpc/limits.hpp"

#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <kj/debug.h>

namespace hicache {

namespace {

/// Bytes at which gathered messages are written: several lookups of 128 keys.
constexpr auto gathered_bytes = size_t{8} << 10;

} // namespace

capnp::ReaderOptions receive_bounds() {
  auto options = capnp::ReaderOptions{};
  options.traversalLimitInWords = rpc::limits::message_words;
  options.nestingLimit = rpc::limits::nesting;
  return options;
}

kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>>
peer_stream::read(capnp::ReaderOptions options, kj::ArrayPtr<capnp::word> scratch) {
  using read_message = kj::Maybe<capnp::MessageReaderAndFds>;
  return capnp::tryReadMessage(input_, options, scratch)
    .then([](kj::Maybe<kj::Own<capnp::MessageReader>>&& message) -> read_message {
      KJ_IF_MAYBE (one, message)
        return capnp::MessageReaderAndFds{kj::mv(*one), nullptr};
      return nullptr;
    });
}

kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>>
peer_stream::tryReadMessage(kj::ArrayPtr<kj::AutoCloseFd>, capnp::ReaderOptions options,
                            kj::ArrayPtr<capnp::word> scratch) {
  using read_message = kj::Maybe<capnp::MessageReaderAndFds>;
  auto next = network_ != nullptr && network_->getCurrentQueueSize() > rpc::limits::unsent_bytes
                ? has_room().then([=, this] { return read(options, scratch); })
                : read(options, scratch);
  return next.then(
    [this](read_message&& message) {
      KJ_IF_MAYBE (one, message)
        count(*one->reader);
      return kj::mv(message);
    },
    [this](kj::Exception&& ex) -> read_message {
      if (ex.getType() != kj::Exception::Type::DISCONNECTED)
        fault_ = ex.getDescription().cStr();
      kj::throwFatalException(kj::mv(ex));
    });
}

void peer_stream::count(capnp::MessageReader& message) {
  switch (message.getRoot<capnp::rpc::Message>().which()) {
    case capnp::rpc::Message::BOOTSTRAP:
    case capnp::rpc::Message::CALL:
      ++questions_;
      break;
    case capnp::rpc::Message::FINISH:
      questions_ -= questions_ > 0 ? 1 : 0;
      break;
    default:
      break;
  }
  if (questions_ > rpc::limits::questions) {
    fault_ = "it has too many questions open";
    kj::throwFatalException(KJ_EXCEPTION(FAILED, fault_.c_str()));
  }
}

kj::Promise<void>
peer_stream::writeMessage(kj::ArrayPtr<const int>,
                          kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  if (waiting_) // Messages are written in sequence, so the previous one has left the queue.
    waiting_->fulfill();
  const auto is_first = gathered_.empty();
  gathered_.addAll(capnp::messageToFlatArray(segments).asBytes());
  const auto is_enough = gathered_.size() >= gathered_bytes;
  if (is_writing_)
    return is_enough ? flushed_.addBranch() : kj::Promise<void>{kj::READY_NOW};
  if (is_enough)
    flushed_ = flush().fork();
  else if (is_first)
    idle_flush_ = kj::evalLast([this] {
                    if (!is_writing_ && !gathered_.empty())
                      flushed_ = flush().fork();
                  }).eagerlyEvaluate(nullptr);
  return kj::READY_NOW;
}

kj::Promise<void> peer_stream::writeMessages(
  kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) {
  auto done = kj::Promise<void>{kj::READY_NOW};
  for (const auto& each : messages)
    done = writeMessage(nullptr, each);
  return done;
}

kj::Promise<void> peer_stream::flush() {
  is_writing_ = true;
  auto bytes = gathered_.releaseAsArray();
  auto written = stream_.write(bytes.begin(), bytes.size());
  return written.attach(kj::mv(bytes))
    .then(
      [this]() -> kj::Promise<void> {
        if (!gathered_.empty())
          return flush();
        is_writing_ = false;
        return kj::READY_NOW;
      },
      [this](kj::Exception&& ex) -> kj::Promise<void> {
        stream_.abortRead(); // No later write may report it; a read does.
        return kj::mv(ex);
      });
}

kj::Promise<void> peer_stream::end() {
  if (!is_writing_ && !gathered_.empty())
    flushed_ = flush().fork();
  return flushed_.addBranch().then([this] { return inner_.end(); });
}

kj::Promise<void> peer_stream::has_room() {
  if (network_->getCurrentQueueSize() <= rpc::limits::unsent_bytes)
    return kj::READY_NOW;
  auto taken = kj::newPromiseAndFulfiller<void>();
  waiting_ = kj::mv(taken.fulfiller);
  return taken.promise.then([this] { return has_room(); });
}

} // namespace hicache
