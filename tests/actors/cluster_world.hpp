#pragma once

#include "actors/index.hpp"
#include "actors/segment.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/page_checksum.hpp"
#include "messages/object_place.hpp"
#include "tests/actors/cluster_network.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <ranges>
#include <sstream>

namespace hicache::test {

// -- what the pages are -------------------------------------------------------

inline constexpr auto key_count = uint64_t{24};
/// Objects of L2 that a member exports, if it exports any, and their bytes.
inline constexpr auto exported_count = uint64_t{3};
inline constexpr auto exported_bytes = uint32_t{64};
/// `fingerprint_of` the pages that are exported.
inline constexpr auto exported_fingerprint = uint64_t{7};
/// Pages of a chain have consecutive keys.
inline constexpr auto chain_pages = uint64_t{4};

inline uint32_t length_of(uint64_t key) {
  return std::array<uint32_t, 5>{64, 190, 64, 448, 320}[key % 5];
}

inline uint64_t fingerprint_of(uint64_t key) {
  return 7 + key / chain_pages % 2;
}

inline std::byte content_of(uint64_t key, size_t at) {
  return static_cast<std::byte>((key * 31 + at * 7 + at / 64) & 0xff);
}

inline page_key parent_of(uint64_t key) {
  return key % chain_pages == 0 ? page_key{} : key_of(key - 1);
}

inline uint64_t number_of(const page_key& key) {
  auto number = uint64_t{};
  std::memcpy(&number, key.bytes.data(), sizeof(number));
  return number;
}

inline segment_page page_of(uint64_t key) {
  return {key_of(key), parent_of(key), length_of(key), fingerprint_of(key), key / 12};
}

/// Writes a half of a page.
inline void fill(std::span<std::byte> object, uint64_t key, bool second) {
  const auto middle = object.size() / 2;
  for (auto i = second ? middle : 0; i < (second ? object.size() : middle); ++i)
    object[i] = content_of(key, i);
}

inline bool holds(std::span<const std::byte> object, uint64_t key) {
  for (auto i = size_t{0}; i < object.size(); ++i)
    if (object[i] != content_of(key, i))
      return false;
  return object.size() == length_of(key);
}

// -- who is there -------------------------------------------------------------

/// A process that exports memory. Its memory can be read after its death.
struct member {
  uint64_t id = 0;
  std::vector<std::byte> memory;
  /// Null if it exports its segment alone.
  std::shared_ptr<exported_pages> exported;
  /// What a disk below its segment has; null if there is none.
  std::shared_ptr<disk_table> disk;
  segment_actor segment;
  replicator_actor replicator;
  std::shared_ptr<member_figures> figures = std::make_shared<member_figures>();
  index_view_ptr view = std::make_shared<const index_view>();
  /// By the number of the shard.
  std::map<uint32_t, connection_ptr> connections;
  bool is_alive = true;
  bool is_drained = false;
  /// Its connections hold what is sent.
  bool is_silent = false;
};

/// The bytes of a page.
inline std::span<std::byte> object_in(member& at, uint64_t offset, uint64_t length) {
  auto info = member_info{};
  if (at.exported)
    info.exported = at.exported->objects();
  return std::span{at.memory}.subspan(*object_offset(info, offset), length);
}

using member_ptr = std::shared_ptr<member>;
using member_map = std::map<uint64_t, member_ptr>;

/// Reads a page in steps, as page_reader does from mapped memory.
struct page_read_steps {
  uint64_t key = 0;
  replica from;
  std::span<const std::byte> head;
  std::span<const std::byte> object;
  int step = 0;
  std::array<std::byte, page_header_bytes> before{};
  std::vector<std::byte> bytes;

  enum class outcome { unfinished, right, miss, corrupt };

  void start(uint64_t number, const replica& where, member& owner) {
    key = number;
    from = where;
    head = std::span{owner.memory}.subspan(from.offset, page_header_bytes);
    object = object_in(owner, from.offset, from.length);
  }

  outcome go_on() {
    const auto middle = object.size() / 2;
    switch (step++) {
      case 0: {
        std::ranges::copy(head, before.begin());
        bytes.resize(from.length);
        const auto header = decode_page_header(before);
        return header && header->generation == from.generation && header->key == key_of(key)
                   && header->fingerprint == fingerprint_of(key) && header->length == length_of(key)
                 ? outcome::unfinished
                 : outcome::miss;
      }
      case 1:
        std::copy_n(object.begin(), middle, bytes.begin());
        return outcome::unfinished;
      case 2:
        std::ranges::copy(object.subspan(middle), bytes.begin() + static_cast<ptrdiff_t>(middle));
        return outcome::unfinished;
      default:
        if (!std::ranges::equal(before, head))
          return outcome::miss;
        const auto parts = std::array{std::span<const std::byte>{bytes}};
        return page_checksum(parts) == decode_page_header(before)->checksum ? outcome::right
                                                                            : outcome::corrupt;
    }
  }
};

inline uint64_t checksum_of(std::span<std::byte> memory, const segment_slot& slot) {
  const auto object = std::array{object_of(memory, slot)};
  return page_checksum(object);
}

/// Copies one page into `slot` at once.
/// @returns whether it is there
inline bool copy_page(const member_map& members, std::span<std::byte> into,
                      const segment_slot& slot, const page_copies& pages, size_t i) {
  const auto& page = pages.pages[i].page;
  auto read = page_read_steps{};
  read.start(number_of(slot.key), {pages.source, page.offset, page.generation, page.length},
             *members.at(pages.source));
  auto end = page_read_steps::outcome::unfinished;
  while (end == page_read_steps::outcome::unfinished)
    end = read.go_on();
  if (end != page_read_steps::outcome::right)
    return false;
  std::ranges::copy(read.bytes, object_of(into, slot).begin());
  seal_slot(into, slot, pages.pages[i].fingerprint, checksum_of(into, slot));
  return true;
}

/// A replicator that reads at once what the real one reads by a page_reader.
inline replicator_actor::behavior_type memory_replicator(replicator_actor::pointer self,
                                                         const member_map& members) {
  return {[self, &members](atom::copy, const page_copies& pages, const caf::strong_actor_ptr& to) {
    auto promise = self->make_response_promise<page_totals>();
    const auto into = caf::actor_cast<segment_actor>(to);
    const auto on_error = [promise](const caf::error& err) mutable { promise.deliver(err); };
    auto on_slots = [=, &members](const segment_slots& slots) {
      const auto is_owner = [&](const auto& x) { return x.second->segment == into; };
      auto& memory = std::ranges::find_if(members, is_owner)->second->memory;
      auto complete = segment_slots{};
      auto failed = segment_slots{};
      for (auto i = size_t{0}; i < slots.list.size(); ++i)
        if (const auto& slot = slots.list[i]; slot.what == segment_slot::state::reserved)
          (copy_page(members, memory, slot, pages, i) ? complete : failed).list.push_back(slot);
      self->send(into, atom::abort_v, failed);
      auto on_ok = [promise, n = complete.list.size()](const key_batch&) mutable {
        promise.deliver(page_totals{n, 0});
      };
      self->request(into, caf::infinite, atom::publish_v, complete).then(on_ok, on_error);
    };
    auto wanted = segment_pages{};
    for (const auto& each : pages.pages)
      wanted.list.push_back(page_of(number_of(each.page.key)));
    self->request(into, caf::infinite, atom::reserve_v, wanted).then(on_slots, on_error);
    return promise;
  }};
}

// -- the cluster --------------------------------------------------------------

/// Real shards of the index and real segments, on connections that the test controls. All that
/// happens is drawn from one seed.
class cluster_world : public actor_world {
public:
  explicit cluster_world(uint64_t seed) : random(seed) {
    for (const auto number : {0u, 1u})
      start_shard(number);
    for (auto i = 0; i < 3; ++i)
      start_member();
  }

  ~cluster_world() { stop_all(); }

  uint32_t draw(size_t below) { return static_cast<uint32_t>(random() % below); }

  std::vector<member_ptr> living() const {
    auto all = std::vector<member_ptr>{};
    for (const auto& [id, each] : members)
      if (each->is_alive)
        all.push_back(each);
    return all;
  }

  member_ptr any_member() {
    const auto all = living();
    return all[draw(all.size())];
  }

  const segment_table& table_of(const member& at) const {
    return *state_of<segment_state>(at.segment).table;
  }

  const offered_pages& offered_by(const member& at) const {
    return *state_of<segment_state>(at.segment).offered;
  }

  // -- processes that come and go ---------------------------------------------

  void start_shard(uint32_t number) {
    shards[number] = spawn(index, index_options{std::chrono::seconds{10}, &clock});
  }

  void start_member() {
    auto at = std::make_shared<member>();
    at->id = ++last_member_;
    members[at->id] = at;
    const auto segment_bytes = 1024 + 64 * uint64_t{draw(40)};
    at->memory.assign(segment_bytes, std::byte{0xee});
    at->replicator = spawn(memory_replicator, std::cref(members));
    auto options = segment_options{};
    options.mounts.member.member = at->id;
    options.mounts.member.host = "host" + std::to_string(at->id);
    options.mounts.member.capacity_bytes = at->memory.size();
    options.mounts.index = [at = at.get()] { return at->view; };
    options.mounts.index_lost = [at = at.get()](const index_actor& lost) {
      auto view = *at->view;
      std::ranges::replace(view.shards, lost, index_actor{});
      at->view = std::make_shared<const index_view>(std::move(view));
    };
    options.mounts.reach = [this](const member_info& other) {
      return caf::actor_cast<member_actor>(members.at(other.member)->segment);
    };
    options.mounts.index_heard = [](uint64_t) {};
    options.mounts.timeout = std::chrono::seconds{2};
    if (draw(2) == 0) {
      const auto headers_end = segment_bytes + exported_count * slot_object_offset;
      const auto where
        = exported_objects{segment_bytes, headers_end, exported_bytes, exported_count};
      at->memory.resize(headers_end + exported_count * exported_bytes);
      at->exported = std::make_shared<exported_pages>(at->memory, where, 1);
      options.exported = at->exported;
      options.mounts.member.exported = where;
      options.mounts.member.fingerprint = exported_fingerprint;
    }
    if (draw(2) == 0)
      at->disk = std::make_shared<disk_table>();
    options.on_disk = at->disk;
    options.memory = at->memory;
    if (draw(3) == 0)
      options.policy = {lru_policy(), 0.9, 0.6, 0.5, 0.7};
    options.replicator = at->replicator;
    options.figures = at->figures;
    options.clock = &clock;
    look(*at);
    at->segment = spawn(segment, options);
    if (at->exported)
      at->exported->open([at = at.get()](segment_slots reclaimed) {
        caf::anon_send(at->segment, atom::withdraw_v, std::move(reclaimed));
      });
    for (const auto& [number, link] : at->connections)
      if (link)
        link->member = at->segment;
  }

  connection_ptr connect(const member& at, const index_actor& shard) {
    auto link = std::make_shared<connection>();
    link->shard = shard;
    link->member = at.segment;
    link->reasons += at.is_drained && at.disk ? 1 : 0;
    link->front = spawn_inside(run_connection, link);
    all_connections.push_back(link);
    return link;
  }

  /// The member learns which shards there are now, and finds those that it lost.
  void look(member& at) {
    for (const auto number : at.view->numbers)
      if (!shards.contains(number))
        break_connection(at, number);
    const auto has_left = [&](uint32_t x) { return !shards.contains(x); };
    const auto leaves_keys = std::ranges::any_of(at.view->numbers, has_left);
    for (const auto& link : all_connections)
      // To the member a broken one is as good as any until it hears that the shard is lost.
      if (leaves_keys && link->member == at.segment)
        ++link->reasons;
    auto entries = std::vector<index_view::entry>{};
    for (const auto& [number, shard] : shards) {
      auto& link = at.connections[number];
      if (link && link->shard != shard)
        break_connection(at, number);
      if (!link && shard)
        link = connect(at, shard);
      const auto was_lost = link && std::ranges::count(at.view->shards, link->as_shard()) == 0;
      if (was_lost)
        ++link->reasons;
      entries.push_back({number, link ? link->as_shard() : index_actor{}, address_of(number)});
    }
    at.view = std::make_shared<const index_view>(entries);
  }

  /// Two of the shards that there may be are in one process.
  static std::string address_of(uint32_t number) { return "process " + std::to_string(number % 3); }

  /// The shards as a member sees them that knows all.
  shard_set all_shards() const {
    auto entries = std::vector<index_view::entry>{};
    for (const auto& [number, shard] : shards)
      entries.push_back({number, shard, address_of(number)});
    return index_view{entries};
  }

  /// What was sent may still arrive, but no answer; after a while the shard hears of its end.
  void break_connection(member& at, uint32_t number) {
    if (auto link = std::exchange(at.connections[number], nullptr))
      broken_.push_back(link);
  }

  void end_connection(const connection_ptr& link) {
    caf::anon_send_exit(link->front, caf::exit_reason::user_shutdown);
  }

  void kill_member() {
    const auto at = any_member();
    if (living().size() < 2)
      return;
    at->is_alive = false;
    for (const auto& [number, shard] : std::map{at->connections})
      break_connection(*at, number);
    caf::anon_send_exit(at->replicator, caf::exit_reason::kill);
    caf::anon_send_exit(at->segment, caf::exit_reason::kill);
  }

  /// A disk gains pages that memory has, or loses some; or a disk tier begins that lists what there
  /// was before.
  void change_disk(const member& at) {
    if (!at.disk)
      return;
    const auto lists = draw(6) == 0;
    auto changed = key_batch{};
    for (auto key = draw(key_count); key < key_count; key += 1 + draw(4)) {
      if (lists || table_of(at).find(key_of(key)))
        at.disk->add(key_of(key), {fingerprint_of(key), length_of(key)});
      else
        at.disk->remove(key_of(key));
      changed.keys.push_back(key_of(key));
    }
    if (lists)
      caf::anon_send(at.segment, atom::adopt_v);
    else
      caf::anon_send(at.segment, atom::backup_v, std::move(changed));
  }

  void change_shards() {
    const auto number = draw(4);
    const auto at = shards.find(number);
    if (at == shards.end() || !at->second) {
      start_shard(number);
      return;
    }
    if (draw(2) == 0) { // Killed; it begins anew later.
      caf::anon_send_exit(at->second, caf::exit_reason::kill);
      at->second = nullptr;
    } else if (shards.size() > 1) { // Given up, and goes on for those who do not know.
      shards.erase(at);
    }
  }

  // -- what passes -----------------------------------------------------------

  /// Due timers send their messages; nothing is delivered.
  void pass_time(caf::timespan time) {
    clock.advance(time);
    sched.advance_time(time);
  }

  /// Some of what is under way arrives.
  void deliver_some() {
    for (const auto& each : living())
      for (const auto& [number, link] : each->connections)
        for (auto count = draw(4); link && !link->is_held && count > 0; --count)
          pass_one(link, draw(2) == 0 ? &connection::requests : &connection::answers);
    std::erase_if(broken_, [this](const auto& link) {
      if (draw(3) == 0)
        pass_one(link, &connection::requests);
      if (draw(12) > 0)
        return false;
      end_connection(link);
      return true;
    });
    auto count = draw(40);
    run_shuffled(random, [&] { return count-- > 0; });
  }

  /// Everything that was sent arrives.
  void run_until_quiet() {
    for (auto is_quiet = false; !is_quiet;) {
      is_quiet = true;
      for (const auto& each : living())
        for (const auto& [number, link] : each->connections)
          for (const auto direction : {&connection::requests, &connection::answers})
            if (link && !(link.get()->*direction).empty()) {
              is_quiet = false;
              pass_one(link, direction);
            }
      run_shuffled(random, [] { return true; });
    }
  }

  /// Nothing is held up any more, and no shard is dead.
  void mend() {
    for (const auto& link : all_connections)
      link->is_held = false;
    for (const auto& [number, shard] : std::map{shards})
      if (!shard)
        start_shard(number);
  }

  /// Time enough for everyone to learn of everything.
  void settle() {
    for (auto i = 0; i < 16; ++i) {
      for (const auto& each : living())
        look(*each);
      run_until_quiet();
      for (const auto& link : std::exchange(broken_, {}))
        end_connection(link);
      pass_time(std::chrono::seconds{1});
    }
    run_until_quiet();
  }

  using offers = std::map<page_key, std::map<uint64_t, replica>>;

  static std::string describe(uint32_t number, const offers& offered, const offers& expected) {
    auto text = std::ostringstream{};
    const auto list = [&text](const offers& all) {
      for (const auto& [key, copies] : all)
        for (const auto& [id, x] : copies)
          text << ' ' << number_of(key) << '@' << id << '+' << x.offset << '/' << x.generation;
    };
    text << "shard " << number << " offers";
    list(offered);
    text << "; expected";
    list(expected);
    return text.str();
  }

  std::mt19937_64 random;
  /// By number; null while it is dead.
  std::map<uint32_t, index_actor> shards;
  member_map members;
  std::vector<connection_ptr> all_connections;

private:
  uint64_t last_member_ = 0;
  /// Nobody's any more, but the shards do not know yet.
  std::vector<connection_ptr> broken_;
};

} // namespace hicache::test
