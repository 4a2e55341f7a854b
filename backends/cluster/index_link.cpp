#include "backends/cluster/index_link.hpp"

#include "backends/cluster/index_addresses.hpp"
#include "backends/end_actor.hpp"
#include "base/check.hpp"

#include <caf/actor_cast.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace hicache {

namespace {

using namespace std::chrono_literals;

/// Pauses between attempts double from the first value to the second.
constexpr auto pause_min = caf::timespan{50ms};
constexpr auto pause_max = caf::timespan{1s};

/// How long the first connection waits for the other shards after reaching one: some round trips.
/// Pages of shards that are still missing are misses until these are back.
constexpr auto rest_patience = std::chrono::seconds{1};

/// Timeout of a directory's answer.
constexpr auto directory_timeout = caf::timespan{5s};

} // namespace

// -- views --------------------------------------------------------------------

index_view::index_view(const std::vector<entry>& entries) {
  for (const auto& one : entries) {
    numbers.push_back(one.number);
    shards.push_back(one.shard);
    addresses.push_back(one.address);
  }
  processes = process_numbers(addresses);
}

bool index_view::is_whole() const noexcept {
  return !shards.empty() && std::ranges::find(shards, index_actor{}) == shards.end();
}

bool index_view::serves_all() const noexcept {
  // A key's two keepers may be any two different processes.
  auto lost = std::set<uint32_t>{};
  auto reached = std::set<uint32_t>{};
  for (auto i = size_t{0}; i < shards.size(); ++i)
    (shards[i] ? reached : lost).insert(processes[i]);
  const auto is_other = [&](uint32_t process) { return !lost.contains(process); };
  return !shards.empty()
         && (lost.empty() || (lost.size() == 1 && std::ranges::any_of(reached, is_other)));
}

struct index_link_board {
  std::mutex mutex;
  std::condition_variable changed;
  index_view_ptr view = std::make_shared<const index_view>();
  uint64_t digest = 0;
  std::string last_error;
};

// -- the actor that connects --------------------------------------------------

namespace {

struct link_state {
  static inline constexpr auto name = "index_link";

  explicit link_state(caf::event_based_actor* owner) : self(owner) {}

  struct process {
    directory_actor directory;
    bool is_asked = false;
  };

  struct shard {
    std::string address;
    index_actor actor;
    bool is_asked = false;
  };

  /// While no process is reachable, uses the user's current addresses and those of the map, whose
  /// processes may be gone for good; forgets all others.
  void seek() {
    const auto is_reached = [](const auto& x) { return !!x.second.directory; };
    if (std::ranges::any_of(processes, is_reached))
      return;
    wants_map = true;
    const auto named = addresses->now();
    auto wanted = std::set<std::string>{named.begin(), named.end()};
    for (const auto& [number, what] : shards)
      wanted.insert(what.address);
    std::erase_if(processes, [&wanted](const auto& x) { return !wanted.contains(x.first); });
    for (const auto& address : wanted)
      processes[address];
    if (processes.empty())
      failed(addresses->trouble());
  }

  /// Starts the missing requests to reach every shard.
  void refresh() {
    for (auto& [address, where] : processes) {
      if (where.is_asked)
        continue;
      if (!where.directory)
        connect(address, where);
      else if (wants_map)
        ask_map(address, where);
    }
    for (auto& [number, what] : shards)
      if (!what.actor && !what.is_asked)
        ask_shard(number, what);
  }

  void connect(const std::string& address, process& where) {
    where.is_asked = true;
    auto on_directory = [this, address](const caf::strong_actor_ptr& found) {
      const auto here = processes.find(address);
      if (here == processes.end())
        return; // Forgotten meanwhile.
      here->second.is_asked = false;
      here->second.directory = caf::actor_cast<directory_actor>(found);
      self->monitor(here->second.directory);
      ask_map(address, here->second);
    };
    auto on_error = [this, address](const caf::error& err) {
      if (const auto here = processes.find(address); here != processes.end())
        here->second.is_asked = false;
      failed(to_string(from_caf(err)));
    };
    self->request(connector, directory_timeout, atom::connect_v, address)
      .then(on_directory, on_error);
  }

  void ask_map(const std::string& address, process& where) {
    where.is_asked = true;
    auto on_map = [this, address](const shard_map& news) {
      if (const auto here = processes.find(address); here != processes.end())
        here->second.is_asked = false;
      take(news);
    };
    auto on_error = [this, address, told = tells_map](const caf::error& err) {
      const auto why = from_caf(err);
      const auto here = processes.find(address);
      if (told && why.code == ec::not_permitted && here != processes.end()) {
        tells_map = false;
        ask_map(address, here->second);
      } else {
        drop_process(address, to_string(why));
      }
    };
    self->request(where.directory, directory_timeout, atom::shards_v, tells_map ? map : shard_map{})
      .then(on_map, on_error);
  }

  void ask_shard(uint32_t number, shard& what) {
    const auto address = what.address;
    const auto where = processes.find(address);
    if (where == processes.end() || !where->second.directory)
      return;
    what.is_asked = true;
    auto on_shard = [this, number, address](const caf::strong_actor_ptr& found) {
      const auto here = shards.find(number);
      if (here == shards.end() || here->second.address != address)
        return;
      here->second.is_asked = false;
      here->second.actor = caf::actor_cast<index_actor>(found);
      self->monitor(here->second.actor);
      show();
    };
    auto on_error = [this, number, address](const caf::error& err) {
      if (const auto here = shards.find(number); here != shards.end())
        here->second.is_asked = false;
      drop_process(address, to_string(from_caf(err)));
    };
    self->request(where->second.directory, directory_timeout, atom::locate_v, number)
      .then(on_shard, on_error);
  }

  void take(const shard_map& news) {
    wants_map = false;
    if (merge(map, news)) {
      auto wanted = std::map<uint32_t, shard>{};
      for (const auto& entry : map.shards) {
        if (entry.address.empty())
          continue;
        processes[entry.address];
        const auto known = shards.find(entry.number);
        // A restarted shard is another actor, even at the same address.
        const auto is_same = known != shards.end() && since[entry.number] == entry.epoch
                             && known->second.address == entry.address;
        wanted.emplace(entry.number, is_same ? known->second : shard{entry.address, {}, false});
        since[entry.number] = entry.epoch;
      }
      shards = std::move(wanted);
      show();
    }
    forget_others();
    if (map.shards.empty())
      failed("it has no shards yet");
    refresh();
  }

  /// Forgets addresses missing from the map: aliases of those in the map, or dead ones.
  void forget_others() {
    if (shards.empty())
      return;
    auto named = std::set<std::string>{};
    for (const auto& [number, what] : shards)
      named.insert(what.address);
    std::erase_if(processes, [&named](const auto& x) { return !named.contains(x.first); });
  }

  void drop_process(const std::string& address, const std::string& why) {
    const auto at = processes.find(address);
    if (at == processes.end())
      return;
    at->second = {};
    for (auto& [number, what] : shards)
      if (what.address == address)
        what.actor = nullptr;
    failed(why);
    show();
  }

  void on_down(const caf::actor_addr& who) {
    for (auto& [address, where] : processes)
      if (where.directory && where.directory.address() == who) {
        spdlog::warn("lost the index at {}; its pages are misses until it is back", address);
        drop_process(address, "connection closed");
      }
    lost(who);
  }

  void lost(const caf::actor_addr& who) {
    for (auto& [number, what] : shards)
      if (what.actor && what.actor.address() == who) {
        what.actor = nullptr;
        show();
        set_timer();
      }
  }

  void failed(const std::string& why) {
    {
      const auto guard = std::lock_guard{board->mutex};
      board->last_error = why;
    }
    set_timer();
  }

  void set_timer() {
    if (std::exchange(is_timer_set, true))
      return;
    self->delayed_send(self, pause, atom::tick_v);
    pause = std::min(2 * pause, pause_max);
  }

  void tick() {
    is_timer_set = false;
    seek();
    refresh();
  }

  void heard(uint64_t digest) {
    if (digest == digest_of(map) || wants_map)
      return;
    wants_map = true;
    set_timer();
  }

  /// Publishes the current view to the users of the link.
  void show() {
    auto entries = std::vector<index_view::entry>{};
    for (const auto& [number, what] : shards)
      entries.push_back({number, what.actor, what.address});
    auto view = std::make_shared<const index_view>(entries);
    if (view->is_whole())
      pause = pause_min;
    const auto guard = std::lock_guard{board->mutex};
    board->view = std::move(view);
    board->digest = digest_of(map);
    board->changed.notify_all();
  }

  caf::event_based_actor* self;
  std::shared_ptr<index_link_board> board;
  connector_actor connector;
  std::shared_ptr<const index_addresses> addresses;
  shard_map map;
  /// By address: those of the map, and until one is reached those given by the user.
  std::map<std::string, process> processes;
  std::map<uint32_t, shard> shards;
  std::map<uint32_t, uint64_t> since;
  bool wants_map = false;
  /// Whether to send directories the known map; false once one rejects it.
  bool tells_map = true;
  bool is_timer_set = false;
  caf::timespan pause = pause_min;
};

caf::behavior link_actor(caf::stateful_actor<link_state>* self,
                         std::shared_ptr<index_link_board> board, connector_actor connector,
                         std::shared_ptr<const index_addresses> addresses) {
  auto& state = self->state;
  state.board = std::move(board);
  state.connector = std::move(connector);
  state.addresses = std::move(addresses);
  self->set_down_handler([self](const caf::down_msg& msg) { self->state.on_down(msg.source); });
  state.tick();
  return {
    [self](atom::tick) { self->state.tick(); },
    [self](atom::drop, const caf::strong_actor_ptr& who) {
      self->state.lost(caf::actor_cast<caf::actor_addr>(who));
    },
    [self](atom::shards, uint64_t digest) { self->state.heard(digest); },
  };
}

} // namespace

// -- for the users of the link ------------------------------------------------

index_link::index_link(caf::actor_system& system, const connector_actor& connector,
                       std::shared_ptr<const index_addresses> addresses)
  : addresses_(std::move(addresses)), system_(system),
    board_(std::make_shared<index_link_board>()) {
  HICACHE_CHECK(addresses_);
  link_ = system.spawn(link_actor, board_, connector, addresses_);
}

index_link::~index_link() {
  end_actor(system_, link_);
}

result<void> index_link::connect(std::chrono::nanoseconds patience) {
  auto lock = std::unique_lock{board_->mutex};
  const auto reaches_some = [this] {
    return std::ranges::any_of(board_->view->shards, [](const auto& shard) { return !!shard; });
  };
  const auto end = std::chrono::steady_clock::now() + patience;
  if (board_->changed.wait_until(lock, end, reaches_some)) {
    board_->changed.wait_until(lock,
                               std::min(end, std::chrono::steady_clock::now() + rest_patience),
                               [this] { return board_->view->is_whole(); });
    return {};
  }
  return fail(ec::peer_unreachable, "no index answers at " + addresses_->name() + " ("
                                      + board_->last_error
                                      + "); start hicache-index there or correct --index");
}

index_view_ptr index_link::view() const {
  const auto guard = std::lock_guard{board_->mutex};
  return board_->view;
}

void index_link::lost(const index_actor& shard) {
  if (shard)
    caf::anon_send(link_, atom::drop_v, caf::actor_cast<caf::strong_actor_ptr>(shard));
}

void index_link::heard(uint64_t shards_digest) {
  {
    const auto guard = std::lock_guard{board_->mutex};
    if (shards_digest == 0 || shards_digest == board_->digest)
      return;
  }
  caf::anon_send(link_, atom::shards_v, shards_digest);
}

} // namespace hicache
