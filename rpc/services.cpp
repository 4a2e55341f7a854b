#include "rpc/services.hpp"

#include "base/keys_of.hpp"
#include "base/limits.hpp"
#include "rpc/methods.hpp"
#include "rpc/page_exchange.hpp"
#include "rpc/page_wire.hpp"
#include "rpc/rpc_error.hpp"

#include <caf/actor_cast.hpp>
#include <kj/debug.h>

#include <string>
#include <utility>
#include <vector>

namespace hicache {

namespace {

void throw_unless(const result<void>& done) {
  if (!done)
    kj::throwFatalException(to_exception(done.error()));
}

// Who may call a method.
constexpr auto as_member = &peer_rights::as_member;
constexpr auto as_operator = &peer_rights::as_operator;
constexpr auto anyone = decltype(as_member){nullptr};

/// A method that relays.
#define HICACHE_SERVE(method, Method, verb, request, answer, right, what)                          \
  kj::Promise<void> method(Method##Context context) override {                                     \
    demand(right, what);                                                                           \
    return relay<hicache::request, hicache::answer>(context, atom::verb##_v);                      \
  }

/// An actor of this process as reached by one peer.
class served_actor {
public:
  served_actor(std::shared_ptr<session> peer, caf::strong_actor_ptr actor, inline_unit* here)
    : peer_(std::move(peer)), actor_(std::move(actor)), here_(here) {}

protected:
  void demand(bool peer_rights::*right, const char* what) {
    if (right != anyone)
      peer_->demand(right, what);
  }

  /// Forwards a request to the actor, and its answer to the peer.
  template <class Request, class Answer, class Context, class Verb>
  kj::Promise<void> relay(Context context, Verb verb) {
    return forward<Answer>(context, verb, take<Request>(context), [](const Answer&) {});
  }

  template <class Request, class Context>
  static Request take(Context& context) {
    auto request = Request{};
    wire::read(context.getParams(), request);
    context.releaseParams();
    return request;
  }

  /// @param seen Called with the answer before it is sent.
  template <class Answer, class Context, class Verb, class Request, class Seen>
  kj::Promise<void> forward(Context context, Verb verb, Request request, Seen seen) {
    context.allowCancellation();
    return peer_->ask(actor_, caf::make_message(verb, std::move(request)), here_)
      .then([context, seen = std::move(seen)](const caf::message& answer) mutable {
        KJ_REQUIRE(answer.match_elements<Answer>(), "an answer of another type");
        seen(answer.get_as<Answer>(0));
        wire::write(answer.get_as<Answer>(0), context.getResults());
      });
  }

  /// Forwards a message without an answer.
  template <class Message, class Context, class Verb>
  kj::Promise<void> pass(Context context, Verb verb) {
    peer_->tell(actor_, caf::make_message(verb, take<Message>(context)), here_);
    return kj::READY_NOW;
  }

  std::shared_ptr<session> peer_;
  caf::strong_actor_ptr actor_;
  inline_unit* here_;
};

class index_service final : public schema::Index::Server, served_actor {
public:
  using served_actor::served_actor;

  HICACHE_INDEX_METHODS(HICACHE_SERVE)

  kj::Promise<void> await(AwaitContext context) override {
    context.allowCancellation();
    return peer_->ask(actor_, caf::make_message(atom::await_v, take<awaited_pages>(context)), here_)
      .ignoreResult();
  }
};

class directory_service final : public schema::Directory::Server, served_actor {
public:
  directory_service(std::shared_ptr<session> peer, const directory_actor& directory,
                    inline_unit& here, bool has_one_shard)
    : served_actor(std::move(peer), caf::actor_cast<caf::strong_actor_ptr>(directory), &here),
      has_one_shard_(has_one_shard) {}

  kj::Promise<void> exchange(ExchangeContext context) override {
    for (const auto shard : context.getParams().getShards())
      if (shard.hasAddress() && shard.getAddress().size() > 0)
        demand(as_member, "tell where shards are");
      else if (!peer_->rights().as_member)
        demand(as_operator, "give up shards");
    return relay<shard_map, shard_map>(context, atom::shards_v);
  }

  kj::Promise<void> shard(ShardContext context) override {
    const auto number = context.getParams().getNumber();
    return peer_->ask(actor_, caf::make_message(atom::locate_v, number), here_)
      .then([this, context](const caf::message& answer) mutable {
        KJ_REQUIRE(answer.match_elements<caf::strong_actor_ptr>(), "an answer of another type");
        context.getResults().setShard(kj::heap<index_service>(
          peer_, answer.get_as<caf::strong_actor_ptr>(0), has_one_shard_ ? here_ : nullptr));
      });
  }

private:
  bool has_one_shard_;
};

class member_service final : public schema::Member::Server, served_actor {
public:
  using served_actor::served_actor;

  HICACHE_MEMBER_METHODS(HICACHE_SERVE)

  kj::Promise<void> touch(TouchContext context) override {
    return pass<key_batch>(context, atom::touch_v);
  }

  kj::Promise<void> corrupt(CorruptContext context) override {
    return pass<key_batch>(context, atom::corrupt_v);
  }
};

/// A node as reached by clients on its machine, which access its memory directly. Clients are
/// identified by connection, so none can act for another.
class node_service : public schema::Node::Server, protected served_actor {
public:
  using served_actor::served_actor;

  HICACHE_NODE_METHODS(HICACHE_SERVE)
};

/// A node as reached by clients on other machines. Their bytes are copied here, on the network's
/// thread, so the node's actor and its local clients do not wait for copies.
class remote_node_service final : public node_service {
public:
  /// @param bytes The peer's, shared by all of its references to this service.
  remote_node_service(std::shared_ptr<session> peer, caf::strong_actor_ptr node, inline_unit& here,
                      std::shared_ptr<page_exchange> bytes)
    : node_service(std::move(peer), std::move(node), &here), bytes_(std::move(bytes)) {}

  kj::Promise<void> attach(AttachContext context) override {
    auto who = take<client_info>(context);
    return peer_->ask(actor_, caf::make_message(atom::attach_v, who), here_)
      .then([context](const caf::message& answer) mutable {
        KJ_REQUIRE(answer.match_elements<node_info>(), "an answer of another type");
        auto info = answer.get_as<node_info>(0);
        info.memory_name.clear(); // The name is valid on this machine only.
        wire::write(info, context.getResults());
      });
  }

  kj::Promise<void> reserve(ReserveContext context) override {
    demand_writer();
    auto wanted = take<wanted_pages>(context);
    auto keys = keys_of(wanted.pages);
    return forward<reserved_pages>(context, atom::reserve_v, std::move(wanted),
                                   [bytes = bytes_, keys = std::move(keys)](
                                     const reserved_pages& got) { bytes->reserved(keys, got); });
  }

  kj::Promise<void> write(WriteContext context) override {
    demand_writer();
    const auto upload = context.getParams();
    // Read once: each access counts against the bounds of a message.
    const auto sent = upload.getPieces();
    const auto bytes = upload.getBytes();
    check_bounds(sent.size(), bytes.size());
    auto pieces = std::vector<page_piece>{};
    wire::get(sent, pieces, limits::transfer_ranges);
    throw_unless(bytes_->write(upload.getReservation(), pieces,
                               std::as_bytes(std::span{bytes.begin(), bytes.size()})));
    return kj::READY_NOW;
  }

  kj::Promise<void> commit(CommitContext context) override {
    demand_writer();
    auto complete = take<complete_pages>(context);
    throw_unless(bytes_->check(complete));
    bytes_->end(complete.reservation);
    return forward<page_totals>(context, atom::commit_v, std::move(complete),
                                [](const page_totals&) {});
  }

  kj::Promise<void> abort(AbortContext context) override {
    const auto which = take<client_ticket>(context);
    bytes_->end(which.number);
    return forward<page_totals>(context, atom::abort_v, which, [](const page_totals&) {});
  }

  kj::Promise<void> remove(RemoveContext context) override {
    demand_writer();
    return node_service::remove(context);
  }

  kj::Promise<void> clear(ClearContext context) override {
    demand_writer();
    return node_service::clear(context);
  }

  kj::Promise<void> read(ReadContext context) override {
    const auto ranges = context.getParams().getRanges();
    auto length = uint64_t{0};
    for (const auto& range : ranges)
      length += range.getLength();
    check_bounds(ranges.size(), length);
    auto answer = context.getResults();
    auto origins = answer.initOrigins(ranges.size());
    auto bytes = answer.initBytes(static_cast<unsigned>(length));
    auto* to = reinterpret_cast<std::byte*>(bytes.begin());
    for (auto i = 0u; i < ranges.size(); ++i) {
      auto wanted = page_range{};
      wire::get(ranges[i], wanted);
      wire::put(bytes_->read(wanted, {to, wanted.length}), origins[i]);
      to += wanted.length;
    }
    return kj::READY_NOW;
  }

private:
  void demand_writer() { demand(as_member, "store or remove pages"); }

  static void check_bounds(size_t parts, uint64_t bytes) {
    if (parts <= limits::transfer_ranges && bytes <= limits::transfer_bytes)
      return;
    throw_unless(fail(ec::invalid_argument, std::to_string(bytes) + " bytes in "
                                              + std::to_string(parts) + " parts; expected at most "
                                              + std::to_string(limits::transfer_bytes) + " in "
                                              + std::to_string(limits::transfer_ranges)));
  }

  std::shared_ptr<page_exchange> bytes_;
};

class process_service final : public schema::Process::Server {
public:
  process_service(std::shared_ptr<session> peer, served_actors served, inline_unit& here,
                  std::function<void()> greeted)
    : peer_(std::move(peer)), served_(std::move(served)), here_(here), greeted_(std::move(greeted)),
      bytes_(std::make_shared<page_exchange>(served_.node_memory)) {}

  kj::Promise<void> hello(HelloContext context) override {
    throw_unless(check_hello(context.getParams()));
    greeted_();
    auto welcome = context.getResults();
    write_hello(welcome.initHello());
    if (served_.directory)
      welcome.setDirectory(
        kj::heap<directory_service>(peer_, served_.directory, here_, served_.has_one_shard));
    if (served_.member)
      welcome.setMember(kj::heap<member_service>(
        peer_, caf::actor_cast<caf::strong_actor_ptr>(served_.member), &here_));
    if (served_.node)
      welcome.setNode(serve_node());
    return kj::READY_NOW;
  }

private:
  schema::Node::Client serve_node() {
    auto node = caf::actor_cast<caf::strong_actor_ptr>(served_.node);
    if (served_.node_memory.empty())
      return kj::heap<node_service>(peer_, std::move(node), &here_);
    return kj::heap<remote_node_service>(peer_, std::move(node), here_, bytes_);
  }

  std::shared_ptr<session> peer_;
  served_actors served_;
  inline_unit& here_;
  std::function<void()> greeted_;
  /// Shared by all of the peer's references to a node, since it may say hello more than once.
  std::shared_ptr<page_exchange> bytes_;
};

} // namespace

schema::Process::Client serve_process(std::shared_ptr<session> peer, const served_actors& served,
                                      inline_unit& here, std::function<void()> greeted) {
  return kj::heap<process_service>(std::move(peer), served, here, std::move(greeted));
}

result<void> check_hello(schema::Hello::Reader hello) {
  if (hello.getVersion() >= index_protocol_minimum && hello.getMinimum() <= index_protocol_version)
    return {};
  return fail(ec::unsupported, "the peer speaks version " + std::to_string(hello.getVersion())
                                 + " of the protocol and wants at least "
                                 + std::to_string(hello.getMinimum()) + "; this process speaks "
                                 + std::to_string(index_protocol_version) + " and wants at least "
                                 + std::to_string(index_protocol_minimum));
}

void write_hello(schema::Hello::Builder hello) {
  hello.setVersion(index_protocol_version);
  hello.setMinimum(index_protocol_minimum);
}

} // namespace hicache
