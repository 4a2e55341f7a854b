#include "rpc/server.hpp"

#include "base/socket_peer.hpp"
#include "rpc/peer_stream.hpp"
#include "rpc/rpc_error.hpp"
#include "rpc/tls_stream.hpp"

#include <capnp/rpc-twoparty.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace hicache {

namespace {

auto to_kj(std::chrono::nanoseconds time) {
  return time.count() * kj::NANOSECONDS;
}

void turn_away(const std::string& why) {
  kj::throwFatalException(
    kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__, kj::heapString(why.c_str())));
}

/// The host part of a peer's name, HOST:PORT.
std::string_view machine_of(const std::string& peer) {
  return std::string_view{peer}.substr(0, peer.rfind(':'));
}

/// Whether a peer has left too many bytes unread, or for too long.
bool is_deaf(capnp::TwoPartyVatNetwork& network) {
  return network.getCurrentQueueSize() > rpc::limits::unsent_most_bytes
         || network.getOutgoingMessageWaitTime() > to_kj(rpc::limits::peer_silence);
}

} // namespace

/// The Cap'n Proto stack of one connection.
struct rpc_dialogue {
  rpc_dialogue(kj::Own<kj::AsyncIoStream> transport, schema::Process::Client bootstrap)
    : stream(kj::mv(transport)), messages(*stream),
      network(messages, capnp::rpc::twoparty::Side::SERVER, receive_bounds()),
      system(capnp::makeRpcServer(network, kj::mv(bootstrap))) {
    system.setFlowLimit(rpc::limits::flow_words);
    messages.throttle(network);
  }

  kj::Own<kj::AsyncIoStream> stream;
  peer_stream messages;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
};

struct rpc_server::visitor {
  std::string name;
  /// On this machine, as in peer_process.
  pid_t process = 0;
  kj::TimePoint since = kj::origin<kj::TimePoint>();
  std::list<visitor>::iterator at;
  /// True after a valid greeting.
  bool is_proven = false;
  bool is_gone = false;
  std::string fault;
  std::shared_ptr<session> asker;
  kj::Own<kj::AsyncIoStream> stream;
  kj::Own<rpc_dialogue> dialogue;
  kj::Promise<void> task = nullptr;
};

rpc_server::rpc_server(caf::actor_system& system, rpc_loop& loop, tls_source& tls,
                       inline_unit& here, int socket, served_actors served, rpc_admission admits)
  : system_(system), loop_(loop), tls_(tls), here_(here), served_(std::move(served)),
    admits_(admits), receiver_(loop.provider().wrapListenSocketFd(
                       socket, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP
                                 | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC
                                 | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK)) {
  accepting_ = accept_next().eagerlyEvaluate(nullptr);
  sweeping_ = sweep().eagerlyEvaluate(nullptr);
}

rpc_server::~rpc_server() = default;

kj::Promise<void> rpc_server::accept_next() {
  return kj::evalNow([this] { return receiver_->accept(); })
    .then(
      [this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
        is_short_of_descriptors_ = false;
        admit(kj::mv(stream));
        return kj::READY_NOW;
      },
      [this](kj::Exception&& ex) {
        // Usually out of descriptors: new connections queue until some are free.
        if (!std::exchange(is_short_of_descriptors_, true))
          spdlog::error("cannot accept connections: {}; trying again until it works",
                        ex.getDescription().cStr());
        return loop_.timer().afterDelay(to_kj(rpc::limits::accept_pause));
      })
    .then([this] { return accept_next(); });
}

void rpc_server::admit(kj::Own<kj::AsyncIoStream> stream) {
  if (visitors_.size() >= rpc::limits::connections) {
    spdlog::warn("closed the connection from {}: too many are open", peer_name(*stream));
    return;
  }
  auto& peer = visitors_.emplace_back();
  peer.at = std::prev(visitors_.end());
  peer.name = peer_name(*stream);
  peer.since = loop_.timer().now();
  peer.stream = kj::mv(stream);
  ++unproven_;
  // Close the oldest, so that a flood of silent peers does not lock out others.
  if (unproven_ > rpc::limits::connections_unproven) {
    const auto is_open = [](const visitor& x) { return !x.is_proven && !x.is_gone; };
    refuse(*std::ranges::find_if(visitors_, is_open),
           "too many connections wait for their first message");
  }
  peer.task
    = kj::evalNow([&] { return serve(peer); })
        .then([] {}, [&peer](kj::Exception&& ex) { peer.fault = ex.getDescription().cStr(); })
        .then([this, &peer] { forget(peer); })
        .eagerlyEvaluate(nullptr);
}

void rpc_server::check_process(visitor& peer) {
  const auto socket = peer.stream->getFd();
  const auto from = socket == nullptr ? std::nullopt : socket_peer_of(KJ_ASSERT_NONNULL(socket));
  if (!from || !is_of_own_user_or(admits_.group, KJ_ASSERT_NONNULL(socket)))
    turn_away("it is of user " + (from ? std::to_string(from->user) : "unknown")
              + ", and the socket is for " + std::to_string(::geteuid())
              + (admits_.group ? " and group " + std::to_string(*admits_.group) : ""));
  const auto is_of_it = [&](const visitor& x) { return x.process == from->id && !x.is_gone; };
  const auto open = static_cast<size_t>(std::ranges::count_if(visitors_, is_of_it));
  if (from->id != 0 && open >= rpc::limits::connections_of_process)
    turn_away("process " + std::to_string(from->id) + " has " + std::to_string(open)
              + " connections already");
  peer.process = from->id;
}

void rpc_server::check_machine(const visitor& peer) const {
  const auto machine = machine_of(peer.name);
  const auto is_of_it
    = [machine](const visitor& x) { return machine_of(x.name) == machine && !x.is_gone; };
  const auto open = static_cast<size_t>(std::ranges::count_if(visitors_, is_of_it));
  if (open > admits_.of_machine)
    turn_away("its machine has " + std::to_string(open - 1) + " connections already");
}

kj::Promise<void> rpc_server::serve(visitor& peer) {
  tune(*peer.stream, admits_.silence);
  if (admits_.is_local)
    check_process(peer);
  else if (admits_.of_machine < rpc::limits::connections)
    check_machine(peer);
  auto ready = kj::Promise<identified_stream>{nullptr};
  if (tls_.is_used() && !admits_.is_local) {
    auto keys = tls_.get();
    if (!keys)
      kj::throwFatalException(to_exception(keys.error()));
    ready = wrap_tls(kj::mv(peer.stream), *keys, true);
  } else {
    ready = identified_stream{kj::mv(peer.stream), {}};
  }
  return ready.then([this, &peer](identified_stream&& made) {
    peer.asker = std::make_shared<session>(system_, loop_.shared_from_this(), std::move(made.peer));
    auto greeted = [this, &peer] {
      if (!std::exchange(peer.is_proven, true))
        --unproven_;
    };
    peer.dialogue = kj::heap<rpc_dialogue>(
      kj::mv(made.stream), serve_process(peer.asker, served_, here_, std::move(greeted)));
    return peer.dialogue->network.onDisconnect();
  });
}

kj::Promise<void> rpc_server::sweep() {
  const auto now = loop_.timer().now();
  for (auto& peer : visitors_) {
    if (peer.is_gone)
      continue;
    if (!peer.is_proven && now - peer.since > to_kj(rpc::limits::handshake_time))
      refuse(peer, "it does not say who it is");
    else if (peer.dialogue.get() != nullptr && is_deaf(peer.dialogue->network))
      refuse(peer, "it does not take what it is sent");
  }
  return loop_.timer().afterDelay(1 * kj::SECONDS).then([this] { return sweep(); });
}

void rpc_server::refuse(visitor& peer, const std::string& why) {
  spdlog::warn("closed the connection from {}: {}", peer.name, why);
  peer.is_gone = true;
  if (!peer.is_proven)
    --unproven_;
  erase(peer);
}

void rpc_server::forget(visitor& peer) {
  if (std::exchange(peer.is_gone, true))
    return;
  auto fault = peer.fault;
  if (fault.empty() && peer.dialogue.get() != nullptr)
    fault = peer.dialogue->messages.fault();
  if (!fault.empty())
    spdlog::warn("{} the connection from {}: {}", peer.is_proven ? "closed" : "refused", peer.name,
                 fault);
  else if (!peer.is_proven)
    spdlog::info("{} hung up before it said who it is", peer.name);
  if (!peer.is_proven)
    --unproven_;
  erase(peer);
}

void rpc_server::erase(visitor& peer) {
  loop_.post([me = weak_from_this(), at = peer.at] {
    if (const auto still = me.lock())
      still->visitors_.erase(at);
  });
}

} // namespace hicache
