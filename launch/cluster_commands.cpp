#include "launch/cluster_commands.hpp"

#include "backends/ask.hpp"
#include "backends/cluster/index_addresses.hpp"
#include "backends/cluster/index_link.hpp"
#include "backends/cluster/index_lookup.hpp"
#include "backends/cluster/member_lists.hpp"
#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/numbers.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/store/segment_table.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "rpc/network.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/setting_flags.hpp"

#include <absl/strings/ascii.h>
#include <absl/strings/str_format.h>
#include <caf/actor_system.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <utility>

namespace hicache {

namespace {

using json = nlohmann::json;

/// Connection to the index and the members.
class cluster_client {
public:
  static result<std::unique_ptr<cluster_client>> connect(const std::string& index,
                                                         const tls_files& tls, duration time) {
    HICACHE_TRY(tls.check());
    auto addresses = HICACHE_TRY(about_input("--index", index_addresses::open(index, tls)));
    auto client
      = std::unique_ptr<cluster_client>{new cluster_client{std::move(addresses), tls, time}};
    HICACHE_TRY(client->link_.connect(time));
    return client;
  }

  /// Members as known to any shard: all, or those with the wanted numbers.
  template <class... Wanted>
  result<std::vector<member_info>> members(Wanted... wanted) {
    for (const auto& shard : link_.view()->shards)
      if (shard)
        if (auto list = list_members(system_, shard, wanted..., clock_, clock_.now() + time_))
          return list;
    return fail(ec::peer_unreachable, "no shard of the index answers");
  }

  result<member_actor> find(uint64_t member) {
    const auto found = HICACHE_TRY(members(std::span{&member, 1}));
    if (found.empty())
      return fail(ec::not_found, absl::StrFormat("there is no member %016x", member));
    return reach(found.front());
  }

  member_actor reach(const member_info& member) { return network_.member_at(member.address); }

  /// The replicas of each key.
  result<std::vector<replica_list>> locate(std::span<const page_key> keys) {
    auto found = lookup_.locate(keys, clock_.now() + time_);
    if (found.unanswered.empty())
      return std::move(found.where.replicas);
    const auto view = link_.view();
    return fail(
      ec::peer_unreachable,
      view->numbers.empty()
        ? "no shard of the index is reached"
        : "shard "
            + std::to_string(view->numbers[view->keepers_of(keys[found.unanswered.front()]).first])
            + " of the index is not reached, nor another one that knows its pages");
  }

  /// Retires a shard; its keys move to the others.
  result<void> retire(uint32_t number) {
    const auto view = link_.view();
    if (!std::ranges::binary_search(view->numbers, number))
      return fail(ec::not_found, "there is no shard " + std::to_string(number)
                                   + "; hicachectl status shows those in use");
    if (view->numbers.size() == 1)
      return fail(ec::invalid_argument,
                  "shard " + std::to_string(number) + " is the only one; it has to stay");
    auto why = error{ec::peer_unreachable, "no process of the index can be reached"};
    // One directory is enough: it informs the others.
    for (auto i = size_t{0}; i < view->numbers.size(); ++i) {
      if (!view->shards[i])
        continue;
      const auto directory = directory_at(view->addresses[i]);
      const auto map = directory ? ask<shard_map>(*directory, atom::shards_v, shard_map{})
                                 : result<shard_map>{tl::unexpected{directory.error()}};
      if (!map) {
        why = map.error();
        continue;
      }
      const auto at = std::ranges::find(map->shards, number, &index_shard::number);
      if (at == map->shards.end())
        return fail(ec::not_found, "there is no shard " + std::to_string(number));
      // An entry without an address and with a newer epoch retires the shard.
      const auto news = shard_map{{{number, {}, at->epoch + 1}}};
      HICACHE_TRY(ask<shard_map>(*directory, atom::shards_v, news));
      return {};
    }
    return tl::unexpected{why};
  }

  template <class Answer, class Handle, class... Args>
  result<Answer> ask(const Handle& to, Args&&... args) {
    return ask_within<Answer>(time_, to, std::forward<Args>(args)...);
  }

  template <class Answer, class Handle, class... Args>
  result<Answer> ask_within(duration time, const Handle& to, Args&&... args) {
    return hicache::ask<Answer>(system_, to, caf::timespan{time}, std::forward<Args>(args)...);
  }

private:
  cluster_client(std::shared_ptr<const index_addresses> addresses, const tls_files& tls,
                 duration time)
    : time_(time), network_(system_, tls),
      link_(system_, network_.connector(), std::move(addresses)) {}

  result<directory_actor> directory_at(const std::string& address) {
    const auto found
      = HICACHE_TRY(ask<caf::strong_actor_ptr>(network_.connector(), atom::connect_v, address));
    return caf::actor_cast<directory_actor>(found);
  }

  duration time_;
  monotonic_clock clock_;
  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_;
  index_link link_;
  index_lookup lookup_{system_, link_, clock_};
};

result<page_key> parse_key(const std::string& text) {
  if (const auto key = parse_page_key(absl::AsciiStrToLower(text)))
    return *key;
  return fail(ec::invalid_argument, "'" + text + "' is no page; expected 64 hexadecimal digits");
}

result<uint64_t> parse_id(const char* flag, const std::string& text) {
  const auto id = parse_number<uint64_t>(text, 16);
  if (!id)
    return fail(ec::invalid_argument,
                std::string{flag} + ": '" + text
                  + "' is not known; expected hexadecimal digits as hicachectl status shows them");
  return *id;
}

result<std::vector<token_id>> read_tokens(const std::string& path) {
  auto file = std::ifstream{path};
  const auto text = std::string{std::istreambuf_iterator<char>{file}, {}};
  const auto parsed = json::parse(text, nullptr, false);
  const auto is_token
    = [](const json& x) { return x.is_number_unsigned() && x.get<uint64_t>() <= ~token_id{0}; };
  if (!file || !parsed.is_array() || !std::ranges::all_of(parsed, is_token))
    return fail(ec::invalid_argument,
                "--tokens: cannot read " + path + "; expected a JSON list of token ids");
  return parsed.get<std::vector<token_id>>();
}

std::string name_of(uint64_t member) {
  return absl::StrFormat("%016x", member);
}

/// Combined answers of several members.
struct answers {
  page_totals totals;
  bool all_well = true;

  /// Takes the answer of a member asked to pin `asked` pages.
  void take_pins(uint64_t member, size_t asked, const result<page_totals>& one) {
    take(member, one);
    if (!one || one->pages >= asked)
      return;
    all_well = false;
    absl::FPrintF(stderr,
                  "member %s left %d of %d pages out; expected room within its "
                  "pinned_share, and pages that it still has\n",
                  name_of(member), asked - one->pages, asked);
  }

  void take(uint64_t member, const result<page_totals>& one) {
    if (!one) {
      all_well = false;
      absl::FPrintF(stderr, "member %s: %s\n", name_of(member), to_string(one.error()));
      return;
    }
    totals.pages += one->pages;
    totals.bytes += one->bytes;
  }
};

/// Prints what a command did.
void show(bool as_json, const json& object, const std::string& text) {
  absl::PrintF("%s\n", as_json ? object.dump() : text);
}

int show_totals(const answers& all, const char* verb, bool as_json) {
  show(as_json, {{"pages", all.totals.pages}, {"bytes", all.totals.bytes}},
       absl::StrFormat("%s %d pages, %s", verb, all.totals.pages, format_bytes(all.totals.bytes)));
  return all.all_well ? exit_ok : exit_failed;
}

result<int> look_up(cluster_client& cluster, const std::vector<page_key>& keys, bool as_json) {
  const auto found = HICACHE_TRY(cluster.locate(keys));
  const auto members = HICACHE_TRY(cluster.members());
  auto hosts = std::map<uint64_t, std::string>{};
  for (const auto& member : members)
    hosts[member.member] = member.host;
  auto list = json::array();
  auto missing = size_t{0};
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    auto copies = json::array();
    for (const auto& copy : found[i])
      copies.push_back({{"member", name_of(copy.member)},
                        {"host", hosts[copy.member]},
                        {"on_disk", is_on_disk(copy.offset)},
                        {"offset", copy.offset},
                        {"generation", copy.generation},
                        {"length", copy.length}});
    missing += copies.empty() ? 1 : 0;
    if (!as_json)
      absl::PrintF("%s  %s\n", to_string(keys[i]), copies.empty() ? "not stored" : "");
    for (const auto& copy : found[i])
      if (!as_json)
        absl::PrintF("  %s on %s, %s %s\n", name_of(copy.member), hosts[copy.member],
                     format_bytes(copy.length),
                     is_on_disk(copy.offset) ? "on disk" : "at " + std::to_string(copy.offset));
    list.push_back({{"page", to_string(keys[i])}, {"replicas", std::move(copies)}});
  }
  if (as_json)
    absl::PrintF("%s\n", json{{"pages", list}}.dump(2));
  return missing == keys.size() ? exit_failed : exit_ok;
}

result<int> pin(cluster_client& cluster, const std::vector<page_key>& keys, page_pins wanted,
                const char* verb, bool as_json) {
  const auto found = HICACHE_TRY(cluster.locate(keys));
  auto of_member = std::map<uint64_t, std::vector<page_key>>{};
  auto absent = size_t{0};
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    absent += found[i].empty() ? 1 : 0;
    // Only pages in memory can be pinned; of one that is on disk alone its member says that.
    const auto is_in_memory = count_in_memory(found[i]) > 0;
    for (const auto& copy : found[i])
      if (!is_in_memory || !is_on_disk(copy.offset))
        of_member[copy.member].push_back(keys[i]);
  }
  auto all = answers{};
  for (const auto& [id, pages] : of_member) {
    const auto member = cluster.find(id);
    for (auto rest = std::span{pages}; !rest.empty();) {
      const auto part = rest.first(std::min(limits::index_batch_keys, rest.size()));
      rest = rest.subspan(part.size());
      wanted.keys.assign(part.begin(), part.end());
      all.take_pins(id, wanted.keys.size(),
                    member ? cluster.ask<page_totals>(*member, atom::pin_v, wanted)
                           : result<page_totals>{tl::unexpected{member.error()}});
    }
  }
  const auto unpins = wanted.kind == static_cast<uint8_t>(pin_kind::none);
  if (absent == keys.size() || (absent > 0 && !unpins)) {
    all.all_well = false;
    absl::FPrintF(stderr, "%d of %d pages are not stored\n", absent, keys.size());
  }
  return show_totals(all, verb, as_json);
}

result<int> clear(cluster_client& cluster, uint64_t fingerprint, bool as_json) {
  const auto members = HICACHE_TRY(cluster.members());
  auto all = answers{};
  for (const auto& info : members)
    all.take(info.member, cluster.ask<page_totals>(cluster.reach(info), atom::clear_v,
                                                   namespace_pages{fingerprint}));
  return show_totals(all, "cleared", as_json);
}

/// Prints the progress of a member's drain every second until it answers.
result<drain_report> watch_drain(cluster_client& cluster, const member_actor& member,
                                 std::future<result<drain_report>> answer) {
  auto shown = uint64_t{0};
  while (answer.wait_for(std::chrono::seconds{1}) != std::future_status::ready) {
    const auto now = cluster.ask<drain_progress>(member, atom::status_v, status_query{});
    if (now && now->tried != std::exchange(shown, now->tried))
      absl::FPrintF(stderr, "%d of %d pages tried, %d copied\n", now->tried, now->pages,
                    now->moved);
  }
  return answer.get();
}

result<int> drain(cluster_client& cluster, uint64_t id, bool force, duration time, bool as_json) {
  const auto member = HICACHE_TRY(cluster.find(id));
  absl::FPrintF(stderr, "draining member %s; it takes no more pages\n", name_of(id));
  const auto report = watch_drain(cluster, member, std::async(std::launch::async, [&] {
                                    return cluster.ask_within<drain_report>(
                                      time, member, atom::drain_v, drain_request{force});
                                  }));
  if (!report && report.error().code == ec::not_permitted)
    return tl::unexpected{report.error()};
  if (!report) {
    absl::FPrintF(stderr,
                  "member %s is not drained: %s; drain it again, with --force to give pinned pages "
                  "up, or take it back with --undo\n",
                  name_of(id), report.error().detail);
    return exit_failed;
  }
  show(as_json, {{"moved", report->moved}, {"withdrawn", report->withdrawn}},
       absl::StrFormat("copied %d pages to other members and withdrew %d; the process may end now",
                       report->moved, report->withdrawn));
  return exit_ok;
}

result<int> end_drain(cluster_client& cluster, uint64_t id, bool as_json) {
  const auto member = HICACHE_TRY(cluster.find(id));
  const auto was = cluster.ask<drain_progress>(member, atom::resume_v, drain_request{});
  if (!was) {
    absl::FPrintF(stderr, "member %s: %s\n", name_of(id), to_string(was.error()));
    return exit_failed;
  }
  show(as_json, {{"was_closed", was->is_closed}},
       "member " + name_of(id)
         + (was->is_closed ? " takes pages again" : " was not drained; it takes pages as before"));
  return exit_ok;
}

result<int> retire(cluster_client& cluster, uint32_t shard, bool as_json) {
  HICACHE_TRY(cluster.retire(shard));
  show(as_json, {{"retired", shard}},
       absl::StrFormat("shard %d is given up; members tell the others what it kept, and its "
                       "process may end",
                       shard));
  return exit_ok;
}

} // namespace

cluster_commands::cluster_commands(CLI::App& app) : app_(app) {
  config_.index = "127.0.0.1:7766";
  const auto add = [&](const char* name, const char* help) {
    auto* command = app.add_subcommand(name, help);
    add_duration_flag(*command, "--timeout",
                      command->get_name() == "drain" ? drain_timeout_ : timeout_,
                      "how long to wait for each answer");
    command->add_flag("--json", json_, "print one JSON object");
    return command;
  };
  const auto add_keys = [&](CLI::App* command) {
    command->add_option("PAGES", objects_, "names of stored objects, 64 hexadecimal digits each");
    command
      ->add_option("--tokens", tokens_file_,
                   "the pages of this prompt instead: a file with a JSON list of token ids; "
                   "the settings have to be those of the instance")
      ->type_name("FILE");
    command->add_option("--ranks", ranks_, "with --tokens: ranks of the instance")
      ->check(CLI::Range(1, 4096));
    command->add_option("--extra-key", extra_key_, "with --tokens: the request's extra key");
    command->add_option("--salt", salt_, "with --tokens: the tenant's salt");
    add_rank_flags(*command, config_);
  };
  const auto add_index = [&](CLI::App* command) {
    add_index_flag(*command, config_.index);
    add_tls_flags(*command, config_.tls);
  };
  lookup_ = add("lookup", "which members hold pages");
  add_keys(lookup_);
  pin_ = add("pin", "keeps pages from eviction, on all members that hold them");
  add_keys(pin_);
  add_duration_flag(*pin_, "--ttl", ttl_,
                    "for so long; meanwhile they go only if nothing else can");
  pin_->add_flag("--hard", hard_, "until they are unpinned, whatever comes; within pinned_share");
  unpin_ = add("unpin", "lets pages be evicted again");
  add_keys(unpin_);
  clear_ = add("clear", "withdraws and frees all pages of one namespace, on all members");
  add_index(clear_);
  clear_
    ->add_option("--fingerprint", namespace_,
                 "the namespace, as hicachectl status shows it for the members that use it")
    ->required();
  drain_ = add("drain", "makes a member ready to leave: copies its pinned and hot pages to others, "
                        "withdraws the rest; it takes no more");
  add_index(drain_);
  drain_->add_option("--member", member_, "as hicachectl status shows it")->required();
  auto* force = drain_->add_flag("--force", force_,
                                 "also if pinned pages cannot be copied to others: they are gone");
  drain_->add_flag("--undo", undo_, "ends draining: the member takes pages again")->excludes(force);
  retire_ = add("retire", "takes a shard of the index away: the others keep its pages from now on");
  add_index(retire_);
  retire_->add_option("--shard", shard_, "its number, as hicachectl status shows it")->required();
}

result<std::vector<page_key>> cluster_commands::keys() const {
  auto list = std::vector<page_key>{};
  if (objects_.empty() == tokens_file_.empty())
    return fail(ec::invalid_argument, "expected either PAGES or --tokens FILE");
  for (const auto& text : objects_)
    list.emplace_back() = HICACHE_TRY(parse_key(text));
  if (tokens_file_.empty())
    return list;
  const auto tokens = HICACHE_TRY(read_tokens(tokens_file_));
  auto config = config_;
  config.storage_backend = "cluster"; // So that finish() requires all that page names depend on.
  HICACHE_TRY(config.finish(ranks_));
  const auto seed = namespace_seed({extra_key_, salt_});
  const auto pages = hash_pages(tokens, config.page_size, seed ? &*seed : nullptr);
  for (const auto& page : pages)
    for (auto rank = uint32_t{0}; rank < ranks_; ++rank)
      for (const auto& group : config.head_groups(rank, ranks_))
        if (const auto name = object_key(page, object_mask(config.fingerprint(), group.name));
            std::ranges::find(list, name) == list.end()) // Ranks may hold the same heads.
          list.push_back(name);
  if (list.empty())
    return fail(ec::invalid_argument, "--tokens: " + std::to_string(tokens.size())
                                        + " tokens are no whole page; expected at least "
                                        + std::to_string(config.page_size));
  return list;
}

result<int> cluster_commands::perform() const {
  start_logging("error", 0, 1);
  const auto names_pages = *lookup_ || *pin_ || *unpin_;
  const auto wanted = HICACHE_TRY(names_pages ? keys() : result<std::vector<page_key>>{});
  const auto id = HICACHE_TRY(*clear_   ? parse_id("--fingerprint", namespace_)
                              : *drain_ ? parse_id("--member", member_)
                                        : result<uint64_t>{0});
  const auto cluster = HICACHE_TRY(cluster_client::connect(config_.index, config_.tls, timeout_));
  if (*lookup_)
    return look_up(*cluster, wanted, json_);
  if (*clear_)
    return clear(*cluster, id, json_);
  if (*drain_)
    return undo_ ? end_drain(*cluster, id, json_)
                 : drain(*cluster, id, force_, drain_timeout_, json_);
  if (*retire_)
    return retire(*cluster, shard_, json_);
  const auto ttl = std::chrono::duration_cast<std::chrono::milliseconds>(ttl_).count();
  const auto kind = *unpin_ ? pin_kind::none : hard_ ? pin_kind::hard : pin_kind::soft;
  return pin(*cluster, wanted, {static_cast<uint8_t>(kind), static_cast<uint64_t>(ttl), {}},
             *unpin_ ? "unpinned" : "pinned", json_);
}

} // namespace hicache
