#include "rpc/peer_stream.hpp"

#include "rpc/limits.hpp"

#include <capnp/rpc.capnp.h>
#include <kj/debug.h>

namespace hicache {

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
peer_stream::writeMessage(kj::ArrayPtr<const int> descriptors,
                          kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  if (waiting_) // One message after the other is written, so this one follows one that was taken.
    waiting_->fulfill();
  return inner_.writeMessage(descriptors, segments);
}

kj::Promise<void> peer_stream::writeMessages(
  kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) {
  return inner_.writeMessages(messages);
}

kj::Promise<void> peer_stream::has_room() {
  if (network_->getCurrentQueueSize() <= rpc::limits::unsent_bytes)
    return kj::READY_NOW;
  auto taken = kj::newPromiseAndFulfiller<void>();
  waiting_ = kj::mv(taken.fulfiller);
  return taken.promise.then([this] { return has_room(); });
}

} // namespace hicache
