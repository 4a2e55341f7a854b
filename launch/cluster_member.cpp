#include "launch/cluster_member.hpp"

#include "actors/segment.hpp"
#include "base/limits.hpp"
#include "base/units.hpp"
#include "messages/page_header.hpp"

#include <caf/scoped_actor.hpp>

#include <unistd.h>

#include <random>
#include <utility>

namespace hicache {

namespace {

/// What one request to the index may take before the index counts as lost.
constexpr auto index_timeout = std::chrono::seconds{5};

uint64_t random_id() {
  auto source = std::random_device{};
  return (uint64_t{source()} << 32) | source();
}

std::string host_name() {
  auto name = std::string(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0)
    return "unknown";
  name.resize(name.find('\0'));
  return name;
}

} // namespace

result<std::unique_ptr<cluster_member>>
cluster_member::join(caf::actor_system& system, const cluster_member_options& options) {
  const auto where = parse_endpoints(options.index);
  if (!where)
    return fail(ec::invalid_argument, "--index: " + where.error().detail);
  auto member = std::unique_ptr<cluster_member>{new cluster_member{system}};
  if (options.segment_bytes > 0)
    if (auto lent = member->lend(options); !lent)
      return tl::unexpected{lent.error()};
  member->index_ = std::make_unique<index_link>(system, *where);
  if (auto connected = member->index_->connect(limits::index_connect_time); !connected)
    return tl::unexpected{connected.error()};
  if (member->memory_) {
    auto settings = segment_options{};
    settings.member = member->info_;
    settings.memory = member->memory_->bytes();
    settings.index = [link = member->index_.get()] { return link->view(); };
    settings.index_lost
      = [link = member->index_.get()](const index_actor& shard) { link->lost(shard); };
    settings.index_heard = [link = member->index_.get()](uint64_t digest) { link->heard(digest); };
    settings.timeout = index_timeout;
    member->segment_ = system.spawn<caf::detached>(hicache::segment, std::move(settings));
  }
  return member;
}

cluster_member::~cluster_member() {
  if (!segment_)
    return;
  auto self = caf::scoped_actor{system_};
  self->send_exit(segment_, caf::exit_reason::user_shutdown);
  self->wait_for(segment_);
}

result<void> cluster_member::lend(const cluster_member_options& options) {
  const auto slot = slot_bytes_for(options.object_bytes);
  if (options.segment_bytes < slot)
    return fail(ec::invalid_argument, "--segment-size: " + format_bytes(options.segment_bytes)
                                        + " holds no page; expected 0 or at least "
                                        + format_bytes(slot));
  auto memory = shared_memory::create(options.segment_bytes / slot * slot, "hicache-segment");
  if (!memory)
    return fail(memory.error().code, "--segment-size: " + memory.error().detail);
  memory_ = std::move(*memory);
  auto offer = memory_offer::start(*memory_);
  if (!offer)
    return tl::unexpected{offer.error()};
  offer_ = std::move(*offer);
  auto server = page_server::start(memory_->bytes(), options.listen_host);
  if (!server)
    return fail(server.error().code, "--listen-host: " + server.error().detail);
  server_ = std::move(*server);
  info_.member = random_id();
  info_.host = host_name();
  info_.memory_name = offer_->name();
  info_.page_address = server_->address();
  info_.capacity_bytes = memory_->size();
  info_.slot_bytes = slot;
  return {};
}

std::unique_ptr<storage_backend> cluster_member::open(uint64_t fingerprint, read_path path,
                                                      const clock_source& clock) {
  auto options = cluster_options{};
  options.system = &system_;
  options.index = index_.get();
  options.fingerprint = fingerprint;
  options.path = path;
  options.clock = &clock;
  if (memory_) {
    options.segment = segment_;
    options.segment_memory = memory_->bytes();
    options.member = info_.member;
  }
  return std::make_unique<cluster_backend>(std::move(options));
}

} // namespace hicache
