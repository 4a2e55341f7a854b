#include "rpc/connection.hpp"

#include "rpc/limits.hpp"
#include "rpc/peer_stream.hpp"
#include "rpc/rpc_error.hpp"
#include "rpc/services.hpp"
#include "rpc/tls_stream.hpp"

#include <capnp/rpc-twoparty.h>
#include <kj/debug.h>

namespace hicache {

namespace {

class two_party_connection final : public rpc_connection {
public:
  explicit two_party_connection(kj::Own<kj::AsyncIoStream> transport)
    : stream_(kj::mv(transport)), messages_(*stream_),
      network_(messages_, capnp::rpc::twoparty::Side::CLIENT, receive_bounds()),
      system_(capnp::makeRpcClient(network_)) {}

  schema::Welcome::Reader welcome() override { return KJ_ASSERT_NONNULL(welcome_); }

  kj::Promise<void> lost() override { return network_.onDisconnect(); }

  kj::Promise<void> greet() {
    auto builder = capnp::MallocMessageBuilder{4};
    auto peer = builder.initRoot<capnp::rpc::twoparty::VatId>();
    peer.setSide(capnp::rpc::twoparty::Side::SERVER);
    auto process = system_.bootstrap(peer).castAs<schema::Process>();
    auto request = process.helloRequest();
    write_hello(request);
    return request.send().then([this](capnp::Response<schema::Welcome>&& answer) {
      if (const auto fits = check_hello(answer.getHello()); !fits)
        kj::throwFatalException(to_exception(fits.error()));
      welcome_ = kj::mv(answer);
    });
  }

private:
  kj::Own<kj::AsyncIoStream> stream_;
  peer_stream messages_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
  kj::Maybe<capnp::Response<schema::Welcome>> welcome_;
};

/// Where connecting failed.
enum class phase { connecting, securing, greeting };

error why_not(const std::string& address, phase at, const kj::Exception& ex) {
  const auto why = from_exception(ex);
  if (why.code == ec::unsupported || why.code == ec::invalid_argument
      || why.code == ec::not_permitted)
    return {why.code, address + ": " + why.detail};
  if (at == phase::connecting)
    return {ec::peer_unreachable, "cannot connect to " + address};
  if (why.code == ec::deadline_exceeded)
    return {ec::peer_unreachable, address + " does not answer"};
  return {ec::peer_unreachable,
          address
            + " hung up: both sides need certificates of one authority (--tls-cert, "
              "--tls-key, --tls-ca), or neither"};
}

} // namespace

kj::Promise<std::shared_ptr<rpc_connection>> open_connection(rpc_loop& loop, tls_source& tls,
                                                             const std::string& address) {
  using connection_ptr = std::shared_ptr<rpc_connection>;
  const auto where = rpc::parse_endpoint(address);
  if (!where)
    return to_exception(where.error());
  auto at = std::make_shared<phase>(phase::connecting);
  auto opened
    = connect_socket(loop, *where, rpc::limits::peer_silence)
        .then(
          [&tls, at](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
            *at = phase::securing;
            if (!tls.is_used())
              return kj::mv(stream);
            const auto keys = tls.get();
            if (!keys)
              return to_exception(keys.error());
            return wrap_tls(kj::mv(stream), *keys, false).then([](identified_stream&& made) {
              return kj::mv(made.stream);
            });
          })
        .then([at](kj::Own<kj::AsyncIoStream> stream) {
          *at = phase::greeting;
          auto connection = std::make_shared<two_party_connection>(kj::mv(stream));
          auto greeted = connection->greet();
          return greeted.then([connection]() -> connection_ptr { return connection; });
        });
  return loop.timer()
    .timeoutAfter(rpc::limits::connect_time.count() * kj::SECONDS, kj::mv(opened))
    .catch_([at, address](kj::Exception&& ex) -> connection_ptr {
      kj::throwFatalException(to_exception(why_not(address, *at, ex)));
    });
}

} // namespace hicache
