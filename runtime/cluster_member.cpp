#include "runtime/cluster_member.hpp"

#include "actors/fetcher.hpp"
#include "actors/replicator.hpp"
#include "actors/segment.hpp"
#include "backends/ask.hpp"
#include "backends/cluster/index_addresses.hpp"
#include "backends/end_actor.hpp"
#include "base/about.hpp"
#include "base/check.hpp"
#include "base/random_number.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "messages/object_place.hpp"
#include "messages/page_header.hpp"
#include "rpc/peer_identity.hpp"
#include "rpc/tls.hpp"
#include "runtime/network_flags.hpp"

#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

namespace {

/// Timeout of one request to the index, after which the index counts as lost.
constexpr auto index_timeout = std::chrono::seconds{5};

/// Sends only bytes of the page that the reader names.
range_guard guard_of(const member_info& member) {
  return [member](const range_claim& claim, uint64_t head_offset, const range_head& head,
                  uint64_t offset, uint64_t length) {
    const auto header = decode_page_header(head);
    return header && range_claim{header->key, header->generation} == claim
           && is_part_of_object(member, head_offset, header->length, offset, length);
  };
}

} // namespace

page_channel_options member_network(page_transport pages, const tls_files& tls) {
  auto options = page_channel_options{pages, nullptr};
  if (tls.given())
    options.tls = [source = std::make_shared<tls_source>(tls)] {
      return result<std::shared_ptr<ssl_ctx_st>>{source->get()};
    };
  return options;
}

cluster_member::cluster_member(caf::actor_system& system, cluster_member_options options)
  : system_(system), options_(std::move(options)), figures_(std::make_shared<member_figures>()),
    network_(system, options_.tls) {
  info_.host = options_.host.empty() ? machine_name() : options_.host;
  if (info_.host.empty())
    info_.host = "unknown";
}

result<std::unique_ptr<cluster_member>> cluster_member::join(caf::actor_system& system,
                                                             cluster_member_options options) {
  auto addresses = std::shared_ptr<index_addresses>{};
  if (!options.is_alone)
    addresses
      = HICACHE_TRY(about_input("--index", index_addresses::open(options.index, options.tls)));
  auto member = std::unique_ptr<cluster_member>{new cluster_member{system, std::move(options)}};
  if (member->options_.segment_bytes > 0 || member->options_.exported)
    HICACHE_TRY(member->export_memory());
  if (addresses) {
    member->index_
      = std::make_shared<index_link>(system, member->network_.connector(), std::move(addresses));
    HICACHE_TRY(member->index_->connect(member->options_.index_connect_time));
  }
  if (!member->memory_.empty())
    HICACHE_TRY(member->start());
  return member;
}

cluster_member::~cluster_member() {
  network_.stop_serving();
  // The segment ends first: it withdraws its pages and requests no more copies.
  if (segment_)
    static_cast<void>(ask<atom::ok>(system_, segment_, limits::leave_time, atom::terminate_v));
  end_actor(system_, segment_);
  if (options_.exported)
    options_.exported->close();
  end_actor(system_, replicator_);
}

result<void> cluster_member::export_memory() {
  HICACHE_TRY(check_own_role(options_.tls, "exporting memory"));
  const auto slot = slot_bytes_for(options_.object_bytes);
  if (options_.segment_bytes < slot && !(options_.segment_bytes == 0 && options_.exported))
    return fail(ec::invalid_argument,
                options_.segment_flag + ": " + format_bytes(options_.segment_bytes)
                  + " holds no page; expected 0 or at least " + format_bytes(slot));
  // Rounded down to whole cache lines.
  const auto segment_bytes = options_.segment_bytes / 64 * 64;
  if (options_.memory == nullptr)
    own_memory_ = HICACHE_TRY(about(
      options_.segment_flag,
      shared_memory::create(segment_bytes, "hicache-segment",
                            options_.clients_write ? peer_access::write : peer_access::read)));
  const auto& memory = own_memory_ ? *own_memory_ : *options_.memory;
  segment_memory_ = memory.bytes().first(segment_bytes);
  memory_ = options_.exported ? memory.bytes() : segment_memory_;
  if (options_.exported)
    info_.exported = options_.exported->objects();
  HICACHE_CHECK(info_.exported.count == 0 || info_.exported.headers == segment_bytes);
  info_.member = random_number();
  info_.capacity_bytes = segment_bytes + info_.exported.count * info_.exported.object_bytes;
  info_.fingerprint = options_.fingerprint;
  if (options_.is_alone)
    return {}; // Not advertised.
  offer_ = HICACHE_TRY(memory_offer::start(memory));
  server_ = HICACHE_TRY(
    about("--listen-host", page_server::start(memory_, guard_of(info_), options_.listen_host,
                                              member_network(options_.pages, options_.tls))));
  info_.memory_name = offer_->name();
  info_.page_address = server_->address();
  return {};
}

result<void> cluster_member::start() {
  auto settings = segment_options{};
  settings.mounts.index = [] { return std::make_shared<const index_view>(); };
  settings.mounts.timeout = index_timeout;
  auto socket = std::optional<listener>{};
  if (index_) {
    if (!segment_memory_.empty())
      replicator_ = system_.spawn<caf::detached>(
        hicache::replicator, replicator_options{reader(), memory_, limits::storage_timeout});
    // Requests use the host of the page address. Early connections wait until the segment is
    // served.
    const auto pages = rpc::parse_endpoint(info_.page_address);
    HICACHE_CHECK(pages);
    socket = HICACHE_TRY(about_input("--listen-host", network_.listen({options_.listen_host, 0})));
    info_.address = to_string(rpc::endpoint{pages->host, socket->where().port});
    settings.mounts.reach
      = [members = network_.members()](const member_info& other) { return members(other.address); };
    settings.mounts.index = [link = index_] { return link->view(); };
    settings.mounts.index_lost = [link = index_](const index_actor& shard) { link->lost(shard); };
    settings.mounts.index_heard = [link = index_](uint64_t digest) { link->heard(digest); };
  }
  settings.mounts.member = info_;
  settings.memory = memory_;
  settings.policy = options_.policy;
  settings.repair = options_.repair;
  settings.lasting = options_.lasting;
  settings.on_disk = options_.on_disk;
  settings.exported = options_.exported;
  settings.replicator = replicator_;
  settings.copies = static_cast<uint8_t>(options_.replicas);
  settings.figures = figures_;
  settings.clock = options_.clock;
  segment_ = system_.spawn<caf::detached>(hicache::segment, std::move(settings));
  if (socket)
    network_.serve(std::move(*socket), segment_);
  if (options_.exported)
    options_.exported->open([segment = segment_](segment_slots reclaimed) {
      caf::anon_send(segment, atom::withdraw_v, std::move(reclaimed));
    });
  // Pages stored from now on are announced immediately.
  if (auto mounted = ask<atom::ok>(system_, segment_, caf::infinite, atom::mount_v); !mounted)
    spdlog::warn("the index does not know this member yet: {}", to_string(mounted.error()));
  return {};
}

fetcher_actor cluster_member::start_fetcher() {
  if (!replicator_)
    return {};
  lookup_ = std::make_unique<index_lookup>(system_, *index_, *options_.clock);
  auto options = fetcher_options{};
  // Keys that the index cannot answer are misses.
  options.locate = [lookup = lookup_.get()](std::span<const page_key> keys, time_point deadline) {
    return lookup->locate(keys, deadline).where;
  };
  options.replicator = replicator_;
  options.segment = segment_;
  options.member = info_.member;
  options.clock = options_.clock;
  return system_.spawn<caf::detached>(hicache::fetcher, std::move(options));
}

page_reader_options cluster_member::reader() const {
  auto options = page_reader_options{};
  options.system = &system_;
  options.index = index_.get();
  options.reach = [this](const member_info& found) -> member_actor {
    // Local, so that the segment learns which pages were read before the next one is requested.
    if (segment_ && found.member == info_.member)
      return segment_;
    return network_.member_at(found.address);
  };
  options.watch = [this](unique_fd connection, std::function<void()> ended) {
    network_.watch(std::move(connection), std::move(ended));
  };
  options.path = options_.path;
  options.network = member_network(options_.pages, options_.tls);
  options.clock = options_.clock;
  if (!memory_.empty()) {
    options.member = info_.member;
    options.own_memory = memory_;
    options.offers = !segment_memory_.empty();
  }
  return options;
}

std::unique_ptr<blocking_store> cluster_member::open() {
  auto options = cluster_options{};
  options.reader = reader();
  options.fingerprint = options_.fingerprint;
  options.replicas = options_.replicas;
  options.host = info_.host;
  options.figures = figures_;
  if (!memory_.empty()) {
    options.segment = segment_;
    options.segment_memory = segment_memory_;
    options.exported = options_.exported;
  }
  return std::make_unique<cluster_backend>(std::move(options));
}

} // namespace hicache
