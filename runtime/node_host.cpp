#include "runtime/node_host.hpp"

#include "actors/disk_tier.hpp"
#include "actors/node.hpp"
#include "actors/page_scanner.hpp"
#include "backends/ask.hpp"
#include "backends/end_actor.hpp"
#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "messages/page_header.hpp"
#include "rpc/peer_identity.hpp"
#include "stores/open_stores.hpp"
#include "stores/storage_config.hpp"

#include <absl/strings/str_join.h>
#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace hicache {

namespace {

/// The owner of a store below a node's memory: clients have several namespaces.
store_owner disk_owner() {
  auto owner = store_owner{};
  owner.has_namespaces = true;
  return owner;
}

} // namespace

node_host::node_host(caf::actor_system& system, node_host_options options)
  : system_(system), options_(std::move(options)) {}

result<std::unique_ptr<node_host>> node_host::start(caf::actor_system& system,
                                                    node_host_options options) {
  auto host = std::unique_ptr<node_host>{new node_host{system, std::move(options)}};
  HICACHE_TRY(host->serve());
  return host;
}

result<void> node_host::serve() {
  const auto least = slot_bytes_for(1) + (options_.memory_file.empty() ? 0 : memory_label_bytes);
  if (options_.memory_bytes < least)
    return fail(ec::invalid_argument, "--memory: " + format_bytes(options_.memory_bytes)
                                        + " holds no page; expected at least "
                                        + format_bytes(least));
  auto socket = HICACHE_TRY(
    about_input("--socket", options_.opened ? result<listener>{std::move(*options_.opened)}
                                            : rpc_network::listen({"unix:" + options_.socket, 0})));
  is_bound_ = !options_.opened;
  if (is_bound_ && options_.group)
    HICACHE_TRY(open_to_group());
  if (!options_.memory_file.empty())
    file_ = HICACHE_TRY(
      about_input("--memory-file", memory_file::open(options_.memory_file, options_.memory_bytes)));
  auto port = HICACHE_TRY(open_port());
  if (has_disk())
    disk_table_ = std::make_shared<disk_table>();
  member_ = HICACHE_TRY(cluster_member::join(system_, member_settings()));
  const auto& memory = file_ ? file_->memory() : member_->memory();
  offer_ = HICACHE_TRY(memory_offer::start(memory, peer_access::write, options_.group));
  HICACHE_TRY(start_disk());
  fetcher_ = member_->start_fetcher();
  node_ = system_.spawn(hicache::node, node_settings());
  network_ = std::make_unique<rpc_network>(system_, tls_files{});
  network_->serve_node(std::move(socket), node_, options_.group);
  spdlog::info("exports {} to processes of this machine at {}",
               format_bytes(member_->segment_memory().size()), options_.socket);
  if (port) {
    listening_ = port->where();
    remote_network_ = std::make_unique<rpc_network>(system_, options_.tls);
    remote_network_->serve_node(std::move(*port), node_, member_->segment_memory());
    spdlog::info("serves clients on other machines at {}", to_string(*listening_));
  }
  start_scan();
  return {};
}

cluster_member_options node_host::member_settings() {
  auto settings = cluster_member_options{};
  settings.index = options_.index;
  settings.index_connect_time = options_.index_connect_time;
  settings.repair = options_.repair;
  settings.is_alone = options_.index.empty();
  settings.segment_bytes = options_.memory_bytes;
  settings.segment_flag = "--memory";
  if (file_) {
    settings.segment_bytes = file_->page_bytes();
    settings.memory = &file_->memory();
    settings.lasting = file_->contents();
  }
  settings.on_disk = disk_table_;
  settings.clients_write = true;
  settings.policy.held_share = options_.leased_share;
  settings.listen_host = options_.listen_host;
  settings.tls = options_.tls;
  settings.clock = options_.clock;
  return settings;
}

node_options node_host::node_settings() {
  auto settings = node_options{};
  settings.info.memory_name = offer_->name();
  settings.info.memory_bytes = member_->segment_memory().size();
  settings.memory = member_->segment_memory();
  settings.segment = member_->segment();
  settings.disk = disk_;
  settings.on_disk = on_disk_;
  settings.disk_bytes = disk_bytes_;
  settings.disk_stores = disk_stores_;
  settings.fetcher = fetcher_;
  settings.shares = options_.shares;
  settings.lease_time = options_.lease_time;
  settings.figures = member_->figures();
  settings.clock = options_.clock;
  return settings;
}

void node_host::start_scan() {
  if (!file_ || !file_->contents().has_pages)
    return;
  auto options = page_scanner_options{};
  options.memory = member_->segment_memory();
  options.seed = file_->contents().seed;
  options.segment = member_->segment();
  options.figures = member_->figures();
  options.clock = options_.clock;
  scanner_ = system_.spawn<caf::detached>(hicache::page_scanner, std::move(options));
}

result<std::unique_ptr<storage_backend>> node_host::open_disk() {
  if (!options_.extra_config.empty())
    return about_input("--storage-backend-extra-config", open_disk_tiers());
  if (options_.disk_bytes == 0)
    return fail(ec::invalid_argument, "--disk: expected a bound, --disk-bytes, such as 500GiB");
  auto storage = storage_config{};
  storage.path = options_.disk;
  storage.max_bytes = options_.disk_bytes;
  storage.threads = limits::disk_threads;
  auto store = HICACHE_TRY(
    about_input("--disk", open_stores("disk", storage, disk_owner(), *options_.clock)));
  disk_bytes_ = options_.disk_bytes;
  disk_stores_ = store->name();
  spdlog::info("keeps pages in {}, up to {}", options_.disk, format_bytes(disk_bytes_));
  return store;
}

result<std::unique_ptr<storage_backend>> node_host::open_disk_tiers() {
  if (!options_.disk.empty() || options_.disk_bytes > 0)
    return fail(ec::invalid_argument,
                "--disk and --disk-bytes are its short form; expected either");
  const auto storage = HICACHE_TRY(parse_storage_config(options_.extra_config, "tiered"));
  if (storage.tiers.empty())
    return fail(ec::invalid_argument,
                "it names no stores; expected key 'tiers', a list such as "
                R"([{"backend": "disk", "path": "DIR", "max_bytes": "SIZE"}])");
  HICACHE_TRY(check_rankless_stores("tiered", storage));
  auto store = HICACHE_TRY(open_tiers(storage, disk_owner(), *options_.clock));
  const auto is_bounded = std::ranges::count(storage.tiers, 0U, &storage_config::max_bytes) == 0;
  for (const auto& tier : storage.tiers)
    disk_bytes_ += is_bounded ? tier.max_bytes : 0;
  disk_stores_ = absl::StrJoin(*store->tiers(), ", ");
  spdlog::info("keeps pages in {}", disk_stores_);
  return store;
}

result<void> node_host::start_disk() {
  if (!has_disk() && options_.disk_bytes > 0)
    return fail(ec::invalid_argument, "--disk-bytes: expected a folder to bound, --disk");
  if (!has_disk())
    return {};
  disk_store_ = HICACHE_TRY(open_disk());
  on_disk_ = std::make_shared<disk_figures>();
  auto options = disk_tier_options{};
  options.store = disk_store_;
  options.memory = member_->segment_memory();
  options.segment = member_->segment();
  options.table = disk_table_;
  options.figures = on_disk_;
  options.clock = options_.clock;
  disk_ = system_.spawn(hicache::disk_tier, std::move(options));
  caf::anon_send(member_->segment(), atom::attach_v, caf::actor_cast<caf::strong_actor_ptr>(disk_));
  return {};
}

result<std::optional<listener>> node_host::open_port() const {
  if (!options_.listen)
    return std::nullopt;
  HICACHE_TRY(check_own_role(options_.tls, "serving clients"));
  auto opened = HICACHE_TRY(about_input("--listen", rpc_network::listen(*options_.listen)));
  return opened;
}

result<void> node_host::open_to_group() const {
  constexpr auto no_user = static_cast<uid_t>(-1);
  const auto* path = options_.socket.c_str();
  if (::chown(path, no_user, *options_.group) != 0
      || ::chmod(path, S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP) != 0)
    return fail(ec::invalid_argument, "--group: cannot give " + options_.socket + " to group "
                                        + std::to_string(*options_.group) + ": "
                                        + system_message(errno)
                                        + "; expected a group that this user is in");
  return {};
}

bool node_host::answers(duration within) const {
  const auto deadline = options_.clock->now() + within;
  const auto left = [&] { return time_left(*options_.clock, deadline); };
  return network_->answers(within) && (!remote_network_ || remote_network_->answers(left()))
         && ask<node_status>(system_, node_, left(), atom::status_v, status_query{0, 1})
         && ask<segment_slots>(system_, member_->segment(), left(), atom::hold_v, segment_holds{});
}

node_host::~node_host() {
  end_actor(system_, scanner_);
  // Before the network: pages that clients read in place stay leased for the promised time, and a
  // memory file must record that for the next node.
  end_actor(system_, node_);
  for (const auto& network : {network_.get(), remote_network_.get()})
    if (network != nullptr)
      network->stop_serving();
  // The disk tier writes what is queued, for up to that time.
  if (disk_
      && !ask<atom::ok>(system_, disk_, caf::timespan{options_.shutdown_grace}, atom::drain_v))
    spdlog::warn("the disk is too slow: some pages are not kept there");
  end_actor(system_, disk_);
  if (disk_store_ && !disk_store_->close(limits::disk_return_time))
    spdlog::error("calls of the disk have not returned");
  end_actor(system_, fetcher_);
  // A socket file outlives its socket. A new node would replace it, but users check for the file.
  if (is_bound_)
    ::unlink(options_.socket.c_str());
}

} // namespace hicache
