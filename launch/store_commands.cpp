#include "launch/store_commands.hpp"

#include "backends/sized_reads.hpp"
#include "backends/store_outcomes.hpp"
#include "base/about.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/store.hpp"
#include "launch/program.hpp"
#include "launch/status_line.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting_flags.hpp"
#include "stores/open_stores.hpp"
#include "stores/storage_config.hpp"

#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <utility>

namespace hicache {

namespace {

using json = nlohmann::ordered_json;
using object_bytes = std::vector<std::byte>;

const monotonic_clock machine_clock;

/// Objects, and bytes of them, that are read at once.
constexpr auto batch_objects = size_t{64};
constexpr auto batch_bytes = uint64_t{64} << 20;

/// A store, or one of several.
struct open_tier {
  std::string name;
  std::unique_ptr<store> objects;
  bool takes_all_writes = true;
};

/// The settings in a rank's file.
result<rank_config> read_rank_config(const std::string& file, uint32_t ranks) {
  auto config = rank_config{};
  auto reader = CLI::App{};
  add_rank_flags(reader, config);
  try {
    reader.parse(std::vector<std::string>{file, "--config"});
  } catch (const CLI::ParseError& wrong) {
    return fail(ec::invalid_argument, "--config: " + std::string{wrong.what()});
  }
  HICACHE_TRY(config.finish(ranks));
  if (config.storage_backend.empty())
    return fail(ec::invalid_argument,
                "--config: " + file + " names no store; expected hicache-storage-backend in it");
  return config;
}

result<std::vector<page_key>> parse_keys(std::span<const std::string> texts) {
  auto keys = std::vector<page_key>{};
  for (const auto& text : texts) {
    const auto key = parse_page_key(text);
    if (!key)
      return fail(ec::invalid_argument, "KEY: '" + text
                                          + "' is no name of an object; expected 64 digits from 0 "
                                            "to 9 and a to f, as store ls prints them");
    keys.push_back(*key);
  }
  return keys;
}

error of_tier(const open_tier& tier, const error& what) {
  return {what.code, tier.name + ": " + (what.detail.empty() ? sentence(what.code) : what.detail)};
}

/// Calls `visit` with the objects of each part of the list.
template <class Visit>
result<void> visit_objects(const open_tier& tier, duration timeout, Visit visit) {
  auto from = std::string{};
  do {
    auto part = tier.objects->list(std::move(from), timeout);
    if (!part)
      return tl::unexpected{of_tier(tier, part.error())};
    visit(std::span<const listed_object>{part->objects});
    from = std::move(part->next);
  } while (!from.empty());
  return {};
}

/// Calls `take(objects, contents, outcomes)` with batches of these objects, read.
template <class Take>
void read_objects(store& from, std::span<const listed_object> objects, duration timeout,
                  Take take) {
  while (!objects.empty()) {
    auto contents = std::vector<object_bytes>{};
    auto reads = std::vector<page_read>{};
    for (auto bytes = uint64_t{0}; contents.size() < std::min(batch_objects, objects.size())
                                   && (contents.empty() || bytes < batch_bytes);
         bytes += contents.back().size())
      contents.emplace_back(objects[contents.size()].bytes);
    const auto some = objects.first(contents.size());
    for (auto i = size_t{0}; i < some.size(); ++i)
      reads.push_back({some[i].key, {contents[i]}});
    const auto outcomes = from.read(std::move(reads), timeout);
    take(some, contents, outcomes);
    objects = objects.subspan(some.size());
  }
}

/// The objects that a tier which takes all writes lacks.
std::vector<listed_object> missing_in(std::span<const open_tier> tiers,
                                      std::span<const listed_object> objects, duration timeout) {
  auto keys = std::vector<page_key>{};
  for (const auto& x : objects)
    keys.push_back(x.key);
  auto is_missing = std::vector<bool>(objects.size(), false);
  for (const auto& tier : tiers) {
    if (!tier.takes_all_writes)
      continue;
    const auto places = tier.objects->lookup(keys, timeout);
    for (auto i = size_t{0}; i < objects.size(); ++i)
      is_missing[i] = is_missing[i] || !places[i];
  }
  auto missing = std::vector<listed_object>{};
  for (auto i = size_t{0}; i < objects.size(); ++i)
    if (is_missing[i])
      missing.push_back(objects[i]);
  return missing;
}

/// An object whose length is not known.
result<object_bytes> read_whole(store& from, const page_key& key, duration timeout) {
  constexpr auto most = size_t{4} << 30;
  auto* const reads = sized_reads_of(from.batches());
  if (reads == nullptr)
    return fail(ec::unsupported, "the store cannot tell how long its objects are");
  for (auto size = size_t{1} << 20;; size *= 8) {
    auto bytes = object_bytes(size);
    auto promise = std::promise<result<uint64_t>>{};
    reads->read_sized(std::vector{page_read{key, {bytes}}}, machine_clock.now() + timeout,
                      [&](auto lengths) { promise.set_value(lengths.front()); });
    const auto length = promise.get_future().get();
    if (!length && length.error().code == ec::invalid_argument && size < most)
      continue;
    if (!length)
      return tl::unexpected{length.error()};
    bytes.resize(*length);
    return bytes;
  }
}

/// What was found in one tier.
struct tally {
  std::string name;
  uint64_t objects = 0;
  uint64_t bytes = 0;
  uint64_t corrupt = 0;
  uint64_t failed = 0;
};

} // namespace

struct store_commands::place {
  std::vector<open_tier> tiers;
  /// Empty: nobody says whose KV it is, so nothing is written.
  std::optional<uint64_t> fingerprint;
};

// -- flags --------------------------------------------------------------------

store_commands::store_commands(CLI::App& app) : app_(app) {
  auto* store = app.add_subcommand("store", "the objects of a store, without ranks");
  store->require_subcommand(1);
  ls_ = store->add_subcommand("ls", "prints names, lengths and tiers of all objects");
  du_ = store->add_subcommand("du", "counts objects and bytes in each tier");
  exists_ = store->add_subcommand("exists", "says which tiers have these objects");
  get_ = store->add_subcommand("get", "prints the bytes of an object");
  put_ = store->add_subcommand("put", "stores the bytes of a file as an object");
  rm_ = store->add_subcommand("rm", "removes objects from all tiers");
  verify_ = store->add_subcommand("verify", "reads all objects; a store removes what is damaged");
  export_ = store->add_subcommand("export", "copies all objects to a folder, as store file does");
  import_ = store->add_subcommand("import", "copies all objects of such a folder to the store");
  for (auto* command : {ls_, du_, exists_, get_, put_, rm_, verify_, export_, import_}) {
    command
      ->add_option("--config", config_file_,
                   "the file with the settings of ranks, which say where the store is and whose KV "
                   "is in it")
      ->type_name("FILE");
    command->add_option("--backend", backend_,
                        "instead: a store such as file, or tiered; not cluster and not node");
    command
      ->add_option("--extra-config", extra_config_, "its settings, or @FILE in JSON, TOML or YAML")
      ->type_name("JSON|@FILE");
    command->add_option("--tier", tier_, "this tier alone, counted from 1")->type_name("N");
    command->add_option("--rank", rank_, "the rank whose folder a disk store has")->type_name("N");
    command->add_option("--ranks", ranks_, "ranks of the instance, which share max_bytes")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
    add_duration_flag(*command, "--timeout", timeout_, "how long one batch may take");
  }
  for (auto* command : {ls_, du_, verify_})
    command->add_flag("--json", json_, "print JSON");
  for (auto* command : {exists_, rm_})
    command->add_option("KEY", keys_, "names of objects")->required();
  for (auto* command : {get_, put_})
    command->add_option("KEY", key_, "the object's name")->required();
  get_->add_option("--output", file_, "write to this file")->type_name("FILE");
  put_->add_option("FILE", file_, "the file; - is the standard input")->required();
  for (auto* command : {export_, import_})
    command->add_option("DIR", file_, "the folder")->required();
}

result<int> store_commands::perform() const {
  auto where = HICACHE_TRY(open());
  if (ls_->parsed())
    return list(where);
  if (du_->parsed())
    return sum(where);
  if (exists_->parsed())
    return look_up(where);
  if (get_->parsed())
    return get(where);
  if (rm_->parsed())
    return remove(where);
  if (verify_->parsed())
    return verify(where);
  if (!where.fingerprint)
    return fail(ec::invalid_argument,
                "objects say whose KV they are; expected --config FILE of the ranks that use them");
  if (put_->parsed())
    return put(where);
  auto folder = HICACHE_TRY(open_folder(where));
  return export_->parsed() ? copy(where, folder) : copy(folder, where);
}

result<store_commands::place> store_commands::open() const {
  if (config_file_.empty() == backend_.empty())
    return fail(ec::invalid_argument, "expected either --config FILE or --backend NAME");
  auto found = place{};
  auto backend = backend_;
  auto extra = extra_config_;
  if (!config_file_.empty()) {
    const auto config = HICACHE_TRY(read_rank_config(config_file_, ranks_));
    found.fingerprint = fingerprint_of(config.fingerprint());
    backend = config.storage_backend;
    extra = config.extra_config;
  }
  if (rank_ >= ranks_)
    return fail(ec::invalid_argument, absl::StrFormat("--rank: %d of %d; expected a number below "
                                                      "--ranks",
                                                      rank_, ranks_));
  const auto config = HICACHE_TRY(parse_store(backend, extra));
  auto wanted = config.tiers;
  if (wanted.empty()) {
    wanted.push_back(config);
    wanted.front().tier.backend = backend;
  }
  if (tier_ > wanted.size())
    return fail(ec::invalid_argument,
                absl::StrFormat("--tier: there are %d tiers; expected a number from 1 to %d",
                                wanted.size(), wanted.size()));
  auto owner = store_owner{};
  // Without it objects of all namespaces are read: what is of another one is not damaged.
  if (put_->parsed() || import_->parsed() || export_->parsed())
    owner.fingerprint = found.fingerprint;
  owner.keeps_broken = export_->parsed();
  owner.rank = rank_;
  owner.ranks = ranks_;
  for (auto number = uint32_t{1}; auto& each : wanted) {
    if (tier_ == 0 || tier_ == number) {
      each.codecs = "none";
      // A tier without objects may have none yet.
      if (wanted.size() == 1 && !put_->parsed() && !import_->parsed() && !each.path.empty()
          && !std::filesystem::exists(each.path))
        return fail(ec::invalid_argument, "there is no folder " + each.path);
      auto opened = HICACHE_TRY(about("tier " + std::to_string(number),
                                      open_stores(each.tier.backend, each, owner, machine_clock)));
      found.tiers.push_back({absl::StrFormat("%d (%s)", number, each.tier.backend),
                             std::make_unique<store>(std::move(opened)),
                             tier_ > 0 || each.tier.write == "all"});
    }
    ++number;
  }
  return found;
}

result<store_commands::place> store_commands::open_folder(const place& other) const {
  auto config = storage_config{};
  config.path = file_;
  auto owner = store_owner{};
  owner.fingerprint = other.fingerprint;
  auto opened = HICACHE_TRY(about("DIR", open_stores("file", config, owner, machine_clock)));
  auto folder = place{};
  folder.fingerprint = other.fingerprint;
  folder.tiers.push_back({file_, std::make_unique<store>(std::move(opened))});
  return folder;
}

// -- looking ------------------------------------------------------------------

result<int> store_commands::list(place& where) const {
  for (const auto& tier : where.tiers) {
    const auto print = [&](std::span<const listed_object> objects) {
      for (const auto& x : objects)
        if (json_)
          std::cout << json{{"key", to_string(x.key)}, {"bytes", x.bytes}, {"tier", tier.name}}
                    << '\n';
        else
          std::cout << absl::StrFormat("%s %12d  %s\n", to_string(x.key), x.bytes, tier.name);
    };
    HICACHE_TRY(visit_objects(tier, timeout_, print));
  }
  std::cout.flush();
  return exit_ok;
}

result<int> store_commands::sum(place& where) const {
  auto shown = json::array();
  for (const auto& tier : where.tiers) {
    auto found = tally{};
    const auto add = [&](std::span<const listed_object> objects) {
      for (const auto& x : objects) {
        ++found.objects;
        found.bytes += x.bytes;
      }
    };
    HICACHE_TRY(visit_objects(tier, timeout_, add));
    if (!json_)
      std::cout << absl::StrFormat("%12d objects %12s  %s\n", found.objects,
                                   format_bytes(found.bytes), tier.name);
    shown.push_back({{"tier", tier.name}, {"objects", found.objects}, {"bytes", found.bytes}});
  }
  if (json_)
    std::cout << shown.dump(2) << '\n';
  std::cout.flush();
  return exit_ok;
}

result<int> store_commands::look_up(place& where) const {
  const auto keys = HICACHE_TRY(parse_keys(keys_));
  auto holders = std::map<page_key, std::string>{};
  for (const auto& tier : where.tiers) {
    const auto places = tier.objects->lookup(keys, timeout_);
    for (auto i = size_t{0}; i < keys.size(); ++i)
      if (places[i])
        holders[keys[i]] += "  " + tier.name;
  }
  for (const auto& key : keys)
    std::cout << to_string(key) << (holders.contains(key) ? holders[key] : "  none") << '\n';
  std::cout.flush();
  return std::ranges::all_of(keys, [&](const page_key& key) { return holders.contains(key); })
           ? exit_ok
           : exit_failed;
}

// -- single objects -----------------------------------------------------------

result<int> store_commands::get(place& where) const {
  const auto key = HICACHE_TRY(parse_keys({&key_, 1}));
  auto trouble = error{ec::not_found, "the store has no such object"};
  for (const auto& tier : where.tiers) {
    const auto bytes = read_whole(*tier.objects, key.front(), timeout_);
    if (!bytes) {
      if (bytes.error().code != ec::not_found)
        trouble = of_tier(tier, bytes.error());
      continue;
    }
    auto file = std::ofstream{};
    if (!file_.empty())
      file.open(file_, std::ios::binary);
    auto& to = file_.empty() ? std::cout : file;
    if (!to.write(reinterpret_cast<const char*>(bytes->data()),
                  static_cast<std::streamsize>(bytes->size()))
           .flush())
      return fail(ec::invalid_argument, "--output: cannot write to " + file_);
    return exit_ok;
  }
  complain(app_, trouble);
  return exit_failed;
}

result<int> store_commands::put(place& where) const {
  const auto key = HICACHE_TRY(parse_keys({&key_, 1}));
  auto file = std::ifstream{};
  if (file_ != "-")
    file.open(file_, std::ios::binary);
  auto& from = file_ == "-" ? std::cin : file;
  const auto text = std::string{std::istreambuf_iterator<char>{from}, {}};
  if (file_ != "-" && !file)
    return fail(ec::invalid_argument, "FILE: cannot read " + file_);
  const auto bytes = std::as_bytes(std::span{text});
  auto code = exit_ok;
  for (const auto& tier : where.tiers) {
    if (!tier.takes_all_writes)
      continue;
    const auto stored = tier.objects->write({{key.front(), {}, {bytes}}}, timeout_);
    if (stored.front())
      continue;
    complain(app_, of_tier(tier, stored.front().error()));
    code = exit_failed;
  }
  return code;
}

result<int> store_commands::remove(place& where) const {
  const auto keys = HICACHE_TRY(parse_keys(keys_));
  auto code = exit_ok;
  for (const auto& tier : where.tiers)
    for (const auto& removed : tier.objects->remove(keys, timeout_))
      if (!removed) {
        complain(app_, of_tier(tier, removed.error()));
        code = exit_failed;
      }
  return code;
}

// -- all objects --------------------------------------------------------------

result<int> store_commands::verify(place& where) const {
  auto tallies = std::vector<tally>{};
  auto line = status_line{};
  for (const auto& tier : where.tiers) {
    auto& found = tallies.emplace_back(tally{tier.name});
    const auto check = [&](std::span<const listed_object> objects, const auto&,
                           const std::vector<result<void>>& outcomes) {
      for (auto i = size_t{0}; i < objects.size(); ++i) {
        if (!outcomes[i] && outcomes[i].error().code == ec::not_found)
          continue; // It was removed meanwhile.
        ++found.objects;
        found.bytes += objects[i].bytes;
        if (outcomes[i])
          continue;
        ++(outcomes[i].error().code == ec::corrupt_page ? found.corrupt : found.failed);
        std::cerr << to_string(objects[i].key) << "  "
                  << to_string(of_tier(tier, outcomes[i].error())) << '\n';
      }
      line.show([&] {
        return absl::StrFormat("%s: %d objects, %s", tier.name, found.objects,
                               format_bytes(found.bytes));
      });
    };
    const auto read = [&](std::span<const listed_object> objects) {
      read_objects(*tier.objects, objects, timeout_, check);
    };
    HICACHE_TRY(visit_objects(tier, timeout_, read));
  }
  auto code = exit_ok;
  auto shown = json::array();
  for (const auto& x : tallies) {
    code = x.corrupt + x.failed > 0 ? exit_failed : code;
    shown.push_back({{"tier", x.name},
                     {"objects", x.objects},
                     {"bytes", x.bytes},
                     {"corrupt", x.corrupt},
                     {"failed", x.failed}});
    if (!json_)
      std::cout << absl::StrFormat("%12d objects %12s, %d damaged, %d not read  %s\n", x.objects,
                                   format_bytes(x.bytes), x.corrupt, x.failed, x.name);
  }
  if (json_)
    std::cout << shown.dump(2) << '\n';
  std::cout.flush();
  return code;
}

result<int> store_commands::copy(place& from, place& to) const {
  auto copied = uint64_t{0};
  auto bytes = uint64_t{0};
  auto others = uint64_t{0};
  auto damaged = uint64_t{0};
  auto failed = uint64_t{0};
  auto line = status_line{};
  const auto note = [&](const open_tier& tier, const result<void>& outcome) {
    const auto code = outcome ? ec::none : outcome.error().code;
    if (code == ec::corrupt_page)
      ++(outcome.error() == other_namespace() ? others : damaged);
    if (!outcome && code != ec::not_found && code != ec::corrupt_page && ++failed == 1)
      complain(app_, of_tier(tier, outcome.error()));
    return outcome.has_value();
  };
  for (const auto& tier : from.tiers) {
    const auto write
      = [&](std::span<const listed_object> objects, const std::vector<object_bytes>& contents,
            const std::vector<result<void>>& outcomes) {
          auto writes = std::vector<page_write>{};
          for (auto i = size_t{0}; i < objects.size(); ++i)
            if (note(tier, outcomes[i]))
              writes.push_back({objects[i].key, objects[i].parent, {contents[i]}});
          for (const auto& target : to.tiers) {
            if (!target.takes_all_writes)
              continue;
            auto stored = target.objects->write(writes, timeout_);
            for (auto i = size_t{0}; i < writes.size(); ++i)
              if (note(target, stored[i])) {
                ++copied;
                bytes += writes[i].parts.front().size();
              }
          }
          line.show(
            [&] { return absl::StrFormat("%d objects, %s copied", copied, format_bytes(bytes)); });
        };
    const auto read = [&](std::span<const listed_object> objects) {
      auto ours = std::vector<listed_object>{};
      for (const auto& x : objects)
        if (x.fingerprint == 0 || x.fingerprint == *from.fingerprint)
          ours.push_back(x);
      others += objects.size() - ours.size();
      read_objects(*tier.objects, missing_in(to.tiers, ours, timeout_), timeout_, write);
    };
    HICACHE_TRY(visit_objects(tier, timeout_, read));
  }
  std::cout << absl::StrFormat(
    "%d objects, %s copied; left out: %d of another namespace, %d damaged; %d failed\n", copied,
    format_bytes(bytes), others, damaged, failed);
  std::cout.flush();
  return failed > 0 ? exit_failed : exit_ok;
}

} // namespace hicache
