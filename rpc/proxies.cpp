#include "rpc/proxies.hpp"

#include "base/immovable.hpp"
#include "messages/interfaces.hpp"
#include "rpc/limits.hpp"
#include "rpc/methods.hpp"
#include "rpc/page_wire.hpp"
#include "rpc/rpc_error.hpp"

#include <caf/actor_cast.hpp>
#include <caf/actor_config.hpp>
#include <caf/exit_reason.hpp>
#include <caf/make_actor.hpp>
#include <caf/monitorable_actor.hpp>
#include <kj/debug.h>

#include <optional>
#include <span>
#include <utility>

namespace hicache {

/// The requester of an answer; answers ec::stopping when destroyed without an answer.
class pending_answer : immovable {
public:
  explicit pending_answer(const caf::mailbox_element& what) : sender_(what.sender), mid_(what.mid) {
    if (!mid_.is_request())
      sender_ = nullptr;
  }

  ~pending_answer() {
    if (sender_)
      answer(to_answer({ec::stopping, "connection closed"}), nullptr);
  }

  /// @param here Where the requester may run; null: on its own thread or CAF's pool.
  void answer(caf::message what, inline_unit* here) {
    if (const auto to = std::exchange(sender_, nullptr))
      to->enqueue(caf::make_mailbox_element(nullptr, mid_.response_id(), {}, std::move(what)),
                  here);
    if (here != nullptr)
      here->run();
  }

private:
  caf::strong_actor_ptr sender_;
  caf::message_id mid_;
};

namespace {

uint64_t verb_of(const caf::type_erased_tuple& what) {
  KJ_REQUIRE(what.size() > 0 && what.match_element<caf::atom_value>(0), "no verb");
  return static_cast<uint64_t>(what.get_as<caf::atom_value>(0));
}

template <class T>
const T& argument_of(const caf::type_erased_tuple& what) {
  KJ_REQUIRE(what.size() == 2 && what.match_element<T>(1), "no such request");
  return what.get_as<T>(1);
}

/// Sends a request with a protocol value as argument and result.
template <class Argument, class Answer, class Request>
kj::Promise<caf::message> send(Request request, const caf::type_erased_tuple& what) {
  wire::write(argument_of<Argument>(what), request);
  return request.send().then([](auto&& response) {
    auto answer = Answer{};
    wire::read(response, answer);
    return caf::make_message(std::move(answer));
  });
}

/// The same without a result.
template <class Argument, class Request>
kj::Promise<caf::message> send(Request request, const caf::type_erased_tuple& what) {
  wire::write(argument_of<Argument>(what), request);
  return request.send().then([](auto&&) { return caf::message{}; });
}

/// The case of a message that a method takes; `to` has the method.
#define HICACHE_SEND(method, Method, verb, request, answer, right, what_for)                       \
  case atom::verb::uint_value():                                                                   \
    return send<hicache::request, hicache::answer>(to.method##Request(), what);

kj::Promise<caf::message> refuse() {
  return to_exception({ec::unsupported, "other processes are not asked this"});
}

// -- remote ends --------------------------------------------------------------

class index_end final : public remote_end {
public:
  index_end(std::shared_ptr<rpc_connection> at, schema::Index::Client shard)
    : at_(std::move(at)), shard_(kj::mv(shard)) {}

  kj::Promise<caf::message> call(const caf::type_erased_tuple& what) override {
    auto& to = shard_;
    switch (verb_of(what)) {
      HICACHE_INDEX_METHODS(HICACHE_SEND)
      case atom::await::uint_value():
        return send<awaited_pages>(to.awaitRequest(), what).then([](const caf::message&) {
          return caf::make_message(atom::ok_v);
        });
      default:
        return refuse();
    }
  }

private:
  std::shared_ptr<rpc_connection> at_;
  schema::Index::Client shard_;
};

class directory_end final : public remote_end {
public:
  directory_end(std::shared_ptr<rpc_connection> at, proxy_table& table)
    : at_(std::move(at)), table_(table), directory_(at_->welcome().getDirectory()) {}

  kj::Promise<caf::message> call(const caf::type_erased_tuple& what) override {
    switch (verb_of(what)) {
      case atom::shards::uint_value():
        return send<shard_map, shard_map>(directory_.exchangeRequest(), what);
      case atom::locate::uint_value(): {
        auto request = directory_.shardRequest();
        request.setNumber(argument_of<uint32_t>(what));
        return request.send().then([this, at = at_](auto&& answer) {
          return caf::make_message(table_.connected<index_end>(at, answer.getShard()));
        });
      }
      default:
        return refuse();
    }
  }

private:
  std::shared_ptr<rpc_connection> at_;
  proxy_table& table_;
  schema::Directory::Client directory_;
};

class node_end final : public remote_end {
public:
  explicit node_end(std::shared_ptr<rpc_connection> at)
    : at_(std::move(at)), node_(at_->welcome().getNode()) {}

  kj::Promise<caf::message> call(const caf::type_erased_tuple& what) override {
    auto& to = node_;
    switch (verb_of(what)) {
      HICACHE_NODE_METHODS(HICACHE_SEND)
      case atom::set::uint_value():
        return write(*argument_of<page_upload_ptr>(what));
      case atom::get::uint_value():
        return read(*argument_of<page_ranges_ptr>(what));
      default:
        return refuse();
    }
  }

private:
  kj::Promise<caf::message> write(const page_upload& upload) {
    auto request = node_.writeRequest();
    request.setReservation(upload.reservation);
    wire::put(upload.pieces, request.initPieces(wire::size_of(upload.pieces)));
    request.setBytes(
      kj::arrayPtr(reinterpret_cast<const kj::byte*>(upload.bytes.data()), upload.bytes.size()));
    return request.send().then([](auto&&) { return caf::make_message(atom::ok_v); });
  }

  kj::Promise<caf::message> read(const page_ranges& wanted) {
    auto request = node_.readRequest();
    wire::put(wanted, request.initRanges(wire::size_of(wanted)));
    auto length = size_t{0};
    for (const auto& range : wanted)
      length += range.length;
    return request.send().then([count = wanted.size(), length](auto&& answer) {
      // Read once: each access counts against the bounds of a message.
      const auto origins = answer.getOrigins();
      const auto bytes = answer.getBytes();
      KJ_REQUIRE(origins.size() == count && bytes.size() == length, "bytes of other pages");
      auto got = std::make_shared<page_download>();
      wire::get(origins, got->origins, count);
      const auto taken = std::as_bytes(std::span{bytes.begin(), length});
      got->bytes.assign(taken.begin(), taken.end());
      return caf::make_message(page_download_ptr{std::move(got)});
    });
  }

  std::shared_ptr<rpc_connection> at_;
  schema::Node::Client node_;
};

/// Connects to a process and returns its directory or node.
class connector_end final : public remote_end {
public:
  enum class wanted { directory, node };

  connector_end(proxy_table& table, wanted what) : table_(table), wanted_(what) {}

  kj::Promise<caf::message> call(const caf::type_erased_tuple& what) override {
    if (verb_of(what) != atom::connect::uint_value())
      return refuse();
    const auto address = argument_of<std::string>(what);
    return open_connection(table_.loop(), table_.tls(), address)
      .then([this, address](std::shared_ptr<rpc_connection> at) -> kj::Promise<caf::message> {
        if (wanted_ == wanted::node) {
          if (!at->welcome().hasNode())
            return to_exception({ec::unsupported, address + " is not a node"});
          return caf::make_message(table_.connected<node_end>(at));
        }
        if (!at->welcome().hasDirectory())
          return to_exception({ec::unsupported, address + " is not an index"});
        return caf::make_message(table_.connected<directory_end>(at, table_));
      });
  }

private:
  proxy_table& table_;
  wanted wanted_;
};

class member_end final : public remote_end, public std::enable_shared_from_this<member_end> {
public:
  member_end(proxy_table& table, std::string address)
    : table_(table), address_(std::move(address)) {}

  kj::Promise<caf::message> call(const caf::type_erased_tuple& what) override {
    return connect().then([this, what = caf::message::copy(what)] { return ask(what); });
  }

  /// A drain copies all pages worth keeping before it answers.
  bool is_patient(caf::atom_value verb) const override { return verb == atom::drain::value; }

private:
  /// @pre connect() was fulfilled
  kj::Promise<caf::message> ask(const caf::type_erased_tuple& what) {
    if (!at_)
      return to_exception({ec::peer_unreachable, "lost the connection to " + address_});
    auto to = at_->welcome().getMember();
    switch (verb_of(what)) {
      HICACHE_MEMBER_METHODS(HICACHE_SEND)
      case atom::touch::uint_value():
        return send<key_batch>(to.touchRequest(), what);
      case atom::corrupt::uint_value():
        return send<key_batch>(to.corruptRequest(), what);
      default:
        return refuse();
    }
  }

  /// Connects unless connected or connecting. Does not use Cap'n Proto's promised capabilities,
  /// whose calls outlive the loop.
  kj::Promise<void> connect() {
    if (failed_) {
      const auto now = table_.loop().timer().now();
      if (now < *failed_ + rpc::limits::connect_pause.count() * kj::SECONDS)
        return to_exception({ec::peer_unreachable, "cannot connect to " + address_});
      failed_.reset();
      opened_ = nullptr;
    }
    KJ_IF_MAYBE (opened, opened_)
      return opened->addBranch();
    auto opened = open_connection(table_.loop(), table_.tls(), address_)
                    .then([this](std::shared_ptr<rpc_connection> at) {
                      if (!at->welcome().hasMember())
                        kj::throwFatalException(
                          to_exception({ec::unsupported, address_ + " is not a member"}));
                      watch(std::move(at));
                    })
                    .catch_([this](kj::Exception&& ex) {
                      failed_ = table_.loop().timer().now();
                      kj::throwFatalException(kj::mv(ex));
                    })
                    .fork();
    auto branch = opened.addBranch();
    opened_ = kj::mv(opened);
    return branch;
  }

  void watch(std::shared_ptr<rpc_connection> at) {
    at_ = std::move(at);
    watching_ = at_->lost()
                  .then([me = weak_from_this(), &table = table_] {
                    // Pending calls must learn of the loss before the connection is released.
                    table.loop().post([me] {
                      if (const auto still = me.lock()) {
                        still->opened_ = nullptr;
                        still->at_ = nullptr;
                      }
                    });
                  })
                  .eagerlyEvaluate(nullptr);
  }

  proxy_table& table_;
  std::string address_;
  std::optional<kj::TimePoint> failed_;
  /// Set from the first request until the connection is lost.
  kj::Maybe<kj::ForkedPromise<void>> opened_;
  std::shared_ptr<rpc_connection> at_;
  kj::Promise<void> watching_ = nullptr;
};

} // namespace

// -- proxies ------------------------------------------------------------------

/// Any thread.
class proxy_table::proxy_actor final : public caf::monitorable_actor {
public:
  proxy_actor(caf::actor_config& config, std::shared_ptr<proxy_table> table, uint64_t number)
    : monitorable_actor(config), table_(std::move(table)), number_(number) {}

  ~proxy_actor() override {
    table_->loop_->post([table = table_, number = number_] { table->ends_.erase(number); });
  }

  const char* name() const override { return "proxy"; }

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    if (is_over_.load(std::memory_order_acquire))
      return bounce(what);
    // Answers the sender even if the loop has ended.
    auto asker = std::make_shared<pending_answer>(*what);
    table_->loop_->post([table = table_, number = number_, me = caf::strong_actor_ptr{ctrl()},
                         asker = std::move(asker), what = std::move(what)]() mutable {
      table->pass(number, *what, std::move(asker), std::move(me));
    });
  }

  /// Called when the connection is lost.
  void end() {
    is_over_.store(true, std::memory_order_release);
    cleanup(caf::exit_reason::remote_link_unreachable, nullptr);
  }

private:
  std::shared_ptr<proxy_table> table_;
  uint64_t number_;
  std::atomic<bool> is_over_ = false;
};

proxy_table::proxy_table(caf::actor_system& system, std::shared_ptr<rpc_loop> loop, tls_files files)
  : system_(system), loop_(std::move(loop)), tls_(std::move(files)), here_(system) {
  // Load now, so that files broken later leave the initial context in use.
  if (tls_.is_used())
    static_cast<void>(tls_.get());
}

caf::strong_actor_ptr proxy_table::make_proxy(uint64_t number) {
  auto config = caf::actor_config{};
  return caf::make_actor<proxy_actor, caf::strong_actor_ptr>(
    system_.next_actor_id(), system_.node(), &system_, config, shared_from_this(), number);
}

caf::strong_actor_ptr proxy_table::enter(std::shared_ptr<remote_end> end) {
  const auto number = ++last_number_;
  loop_->post([me = shared_from_this(), number, end = std::move(end)]() mutable {
    if (!me->is_closed_)
      me->ends_.emplace(number, std::move(end));
  });
  return make_proxy(number);
}

caf::strong_actor_ptr proxy_table::connector() {
  return enter(std::make_shared<connector_end>(*this, connector_end::wanted::directory));
}

caf::strong_actor_ptr proxy_table::node_connector() {
  return enter(std::make_shared<connector_end>(*this, connector_end::wanted::node));
}

caf::strong_actor_ptr proxy_table::member_at(std::string address) {
  return enter(std::make_shared<member_end>(*this, std::move(address)));
}

template <class End, class... Args>
caf::strong_actor_ptr proxy_table::connected(std::shared_ptr<rpc_connection> at, Args&&... args) {
  const auto number = ++last_number_;
  ends_.emplace(number, std::make_shared<End>(at, std::forward<Args>(args)...));
  auto proxy = make_proxy(number);
  loop_->keep(at->lost().then([weak = caf::actor_cast<caf::actor_addr>(proxy)] {
    if (const auto still = caf::actor_cast<caf::strong_actor_ptr>(weak))
      static_cast<proxy_actor*>(still->get())->end();
  }));
  return proxy;
}

void proxy_table::pass(uint64_t number, const caf::mailbox_element& what,
                       std::shared_ptr<pending_answer> asker, caf::strong_actor_ptr proxy) {
  const auto at = ends_.find(number);
  if (at == ends_.end())
    return; // Closed: destroying `asker` answers.
  const auto& content = what.content();
  auto answer = kj::evalNow([&] { return at->second->call(content); });
  const auto is_patient = content.size() > 0 && content.match_element<caf::atom_value>(0)
                          && at->second->is_patient(content.get_as<caf::atom_value>(0));
  if (!is_patient)
    answer
      = loop_->timer().timeoutAfter(rpc::limits::answer_time.count() * kj::SECONDS, kj::mv(answer));
  // Keeps the proxy, and thereby the connection, until the answer.
  loop_->keep(answer
                .then([asker, this](caf::message&& x) { asker->answer(std::move(x), &here_); },
                      [asker, this](kj::Exception&& ex) {
                        asker->answer(to_answer(from_exception(ex)), &here_);
                      })
                .attach(std::move(proxy)));
}

void proxy_table::close() {
  is_closed_ = true;
  ends_.clear();
}

} // namespace hicache
