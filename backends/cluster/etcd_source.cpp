#include "backends/cluster/etcd_source.hpp"

#include "backends/cluster/dns_client.hpp"
#include "base/immovable.hpp"
#include "base/try.hpp"

#include <openssl/ssl.h>

#include <httplib.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace hicache {

namespace {

using namespace std::chrono_literals;

/// How long an address outlives its process, and how often an announced process refreshes it: three
/// refreshes may fail. Others query less often, as they are many.
constexpr auto lease_time = 8s;
constexpr auto refresh_pause = source_pause_min;
constexpr auto ask_pause = 5s;

/// Timeout of connecting to a server, and of each answer.
constexpr auto server_time = 1s;

/// Maximum answer: several times the longest list.
constexpr auto answer_bytes = size_t{1} << 20;

/// @returns whether OpenSSL accepted all files
bool use(SSL_CTX* context, const tls_files& tls) {
  return SSL_CTX_use_certificate_chain_file(context, tls.certificate.c_str()) == 1
         && SSL_CTX_use_PrivateKey_file(context, tls.key.c_str(), SSL_FILETYPE_PEM) == 1
         && SSL_CTX_load_verify_locations(context, tls.ca.c_str(), nullptr) == 1;
}

} // namespace

/// A short-lived connection to one server.
class etcd_source::connection : immovable {
public:
  /// @returns peer_unreachable or invalid_argument, with a sentence that names the server
  static result<std::unique_ptr<connection>> open(const rpc::endpoint& server,
                                                  const std::string& number, const tls_files& tls,
                                                  interruption& stop) {
    const auto name = "etcd at " + to_string(server);
    auto client = std::unique_ptr<httplib::ClientImpl>{};
    if (tls.given()) {
      auto secure = std::make_unique<httplib::SSLClient>(server.host, server.port);
      if (!secure->is_valid() || !use(secure->ssl_context(), tls))
        return fail(ec::invalid_argument, name + ": the files of --tls-* cannot be used");
      // Otherwise the system's CAs would be trusted.
      secure->set_ca_cert_path(tls.ca);
      secure->enable_server_certificate_verification(true);
      client = std::move(secure);
    } else {
      client = std::make_unique<httplib::ClientImpl>(server.host, server.port);
    }
    client->set_hostname_addr_map({{server.host, number}});
    client->set_connection_timeout(server_time);
    client->set_read_timeout(server_time);
    client->set_write_timeout(server_time);
    client->set_keep_alive(true);
    client->set_socket_options([&stop](socket_t socket) { stop.guard(socket); });
    return std::unique_ptr<connection>{new connection{name, std::move(client), stop}};
  }

  ~connection() { stop_.unguard(); }

  /// @returns the answer's body
  result<std::string> post(const etcd::request& what) {
    if (stop_.is_raised())
      return fail(ec::stopping, {});
    auto request = httplib::Request{};
    request.method = "POST";
    request.path = what.path;
    request.body = what.body;
    request.set_header("Content-Type", "application/json");
    auto body = std::string{};
    request.content_receiver = [&body](const char* bytes, size_t size, uint64_t, uint64_t) {
      body.append(bytes, size);
      return body.size() <= answer_bytes;
    };
    const auto answer = client_->send(request);
    if (!answer)
      return fail(ec::peer_unreachable,
                  name_ + " does not answer (" + to_string(answer.error()) + ")");
    if (answer->status != 200)
      return fail(ec::peer_unreachable, name_ + ": " + etcd::read_refusal(body));
    return body;
  }

private:
  connection(std::string name, std::unique_ptr<httplib::ClientImpl> client, interruption& stop)
    : name_(std::move(name)), client_(std::move(client)), stop_(stop) {}

  const std::string name_;
  const std::unique_ptr<httplib::ClientImpl> client_;
  interruption& stop_;
};

result<address_answer> etcd_source::ask(const std::string& own, interruption& stop) {
  auto why = error{};
  for (auto i = size_t{0}; i < place_.servers.size() && !stop.is_raised(); ++i) {
    const auto which = (at_ + i) % place_.servers.size();
    auto answer = ask_server(place_.servers[which], own, stop);
    if (answer) {
      at_ = which;
      return answer;
    }
    why = std::move(answer.error());
  }
  number_.clear();
  return tl::unexpected{std::move(why)};
}

result<address_answer> etcd_source::ask_server(const rpc::endpoint& server, const std::string& own,
                                               interruption& stop) {
  // The HTTP library would wait for the system's resolver without a timeout.
  const auto host = ask_hosts({{}, true}, {server.host}, stop).front();
  auto why = error{ec::peer_unreachable, "the DNS knows no host " + server.host};
  if (!host)
    why = host.error();
  else
    for (const auto& number : host->numbers) {
      auto opened = connection::open(server, number, tls_, stop);
      auto answer
        = opened ? ask_at(**opened, own) : result<address_answer>{tl::unexpected{opened.error()}};
      if (answer) {
        number_ = number;
        return answer;
      }
      why = std::move(answer.error());
    }
  return tl::unexpected{std::move(why)};
}

result<address_answer> etcd_source::ask_at(connection& server, const std::string& own) {
  if (!own.empty())
    HICACHE_TRY(hold_lease(server));
  const auto body = HICACHE_TRY(server.post(etcd::list_request(place_.prefix)));
  auto list = HICACHE_TRY(etcd::read_list(body));
  if (!own.empty() && (!is_put_ || !std::ranges::binary_search(list, own))) {
    if (auto put = server.post(etcd::put_request(place_.prefix, own, lease_)); !put) {
      lease_.clear(); // The lease may have expired; get a new one next time.
      return tl::unexpected{put.error()};
    }
    is_put_ = true;
  }
  auto trouble
    = list.empty() && own.empty() ? "there are no keys " + place_.prefix + "/..." : std::string{};
  return address_answer{std::move(list), own.empty() ? ask_pause : refresh_pause,
                        std::move(trouble)};
}

result<void> etcd_source::hold_lease(connection& server) {
  if (!lease_.empty()) {
    const auto body = HICACHE_TRY(server.post(etcd::refresh_request(lease_)));
    const auto there = HICACHE_TRY(etcd::read_refresh(body));
    if (there)
      return {};
  }
  const auto body = HICACHE_TRY(server.post(etcd::lease_request(lease_time)));
  lease_ = HICACHE_TRY(etcd::read_lease(body));
  is_put_ = false;
  return {};
}

void etcd_source::leave() {
  // If etcd does not answer, the lease expires by itself.
  if (lease_.empty() || number_.empty())
    return;
  auto never = interruption{};
  if (auto server = connection::open(place_.servers[at_], number_, tls_, never)) [[maybe_unused]]
    const auto revoked = (*server)->post(etcd::revoke_request(lease_));
}

} // namespace hicache
