#include "launch/node_commands.hpp"

#include "backends/ask.hpp"
#include "backends/node_client.hpp"
#include "base/numbers.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/hash/sha256.hpp"
#include "hicache/system_config.hpp"
#include "identity/facts.hpp"
#include "launch/program.hpp"
#include "launch/stop_signal.hpp"
#include "messages/interfaces.hpp"
#include "rpc/network.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting_flags.hpp"

#include <absl/strings/str_format.h>
#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace hicache {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(node_status, capacity_bytes, used_bytes, pages, evicted,
                                   reserved_bytes, leased_bytes, reservations, leases,
                                   expired_leases, refused, pages_wanted, pages_found,
                                   pages_written, pages_kept, pages_dropped, unscanned_bytes,
                                   disk_capacity_bytes, disk_bytes, disk_pages, disk_pages_read,
                                   disk_pages_written, disk_pages_skipped, disk_pages_failed,
                                   disk_stores)

namespace {

/// Clients shown by `top`, limited by the height of a screen.
constexpr auto shown_clients = size_t{20};

constexpr auto shortest_interval = duration{std::chrono::milliseconds{100}};

/// Connection to a node that may restart.
class node_link {
public:
  node_link(std::string address, const tls_files& tls, duration timeout)
    : network_(system_, tls), address_(std::move(address)), timeout_(timeout) {}

  result<node_status> ask_status() {
    if (!node_) {
      const auto found = HICACHE_TRY(ask<caf::strong_actor_ptr>(
        system_, network_.node_connector(), timeout_, atom::connect_v, address_));
      node_ = caf::actor_cast<node_actor>(found);
    }
    auto status = ask<node_status>(system_, node_, timeout_, atom::status_v, status_query{});
    if (!status)
      node_ = nullptr;
    return status;
  }

private:
  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_;
  const std::string address_;
  const caf::timespan timeout_;
  node_actor node_;
};

/// The facts behind a name.
struct named_facts {
  nlohmann::json facts;
  /// Of a model alone; engines have more.
  bool is_folder = false;
};

/// Finds the facts that engines keep at a node.
class facts_reader {
public:
  facts_reader(std::string address, const tls_files& tls, duration timeout)
    : network_(system_, tls), address_(std::move(address)), timeout_(timeout) {}

  /// Withdraws all pages of a namespace, or has them leave first.
  result<page_totals> clear(const std::string& text, bool evict_first) {
    const auto deadline = clock_.now() + timeout_;
    const auto name = HICACHE_TRY(name_of(text, as(0), deadline));
    const auto fingerprint = parse_number<uint64_t>(name, 16);
    if (!fingerprint || name.size() != 16)
      return fail(ec::invalid_argument, "'" + text
                                          + "' is neither the number of a client nor a namespace "
                                            "of 16 digits nor the name of a page");
    return as(*fingerprint)->clear(evict_first, deadline);
  }

  /// @returns not_found, or invalid_argument about a folder
  result<named_facts> facts_of(const std::string& text) {
    if (auto ignored = std::error_code{}; std::filesystem::exists(text, ignored))
      return named_facts{HICACHE_TRY(facts_of_folder(text)), true};
    const auto deadline = clock_.now() + timeout_;
    auto client = as(fingerprint_of(facts_namespace));
    const auto name = HICACHE_TRY(name_of(text, client, deadline));
    const auto key = sha256{}.add_framed(facts_namespace).add_framed(name).finish();
    const auto seen = HICACHE_TRY(client->view(std::array{key}, false, deadline));
    const auto bytes = seen.pages().front();
    if (bytes.empty())
      return fail(ec::not_found,
                  "the node has no facts of " + text
                    + ": they were evicted, or it is of a client that names its pages itself");
    return named_facts{
      HICACHE_TRY(parse_facts({reinterpret_cast<const char*>(bytes.data()), bytes.size()}))};
  }

private:
  using client_ptr = std::unique_ptr<node_client>;

  /// A client of a namespace.
  client_ptr as(uint64_t fingerprint) {
    return std::make_unique<node_client>(node_client_options{
      &system_, network_.node_connector(), address_, {0, fingerprint}, {}, &clock_});
  }

  /// The name under which facts are kept.
  result<std::string> name_of(const std::string& text, const client_ptr& client,
                              time_point deadline) {
    const auto number = text.size() < 16 ? parse_number<uint64_t>(text) : std::optional<uint64_t>{};
    const auto page = parse_page_key(text);
    if (!number && !page)
      return text;
    const auto status = HICACHE_TRY(client->status({}, deadline));
    auto seen = std::set<uint64_t>{};
    for (const auto& each : status.clients) {
      const auto fingerprint = each.info.fingerprint;
      if (number && each.client == *number)
        return absl::StrFormat("%016x", fingerprint);
      if (page && seen.insert(fingerprint).second
          && HICACHE_TRY(as(fingerprint)->exists(std::array{*page}, deadline)).front())
        return absl::StrFormat("%016x", fingerprint);
    }
    return fail(ec::not_found, page ? "none of the node's clients has a page " + text
                                    : "the node has no client " + text);
  }

  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_;
  monotonic_clock clock_;
  const std::string address_;
  const duration timeout_;
};

std::string to_json(const node_status& status) {
  auto clients = nlohmann::json::array();
  for (const auto& client : status.clients)
    clients.push_back({{"client", client.client},
                       {"tenant", client.info.tenant},
                       {"fingerprint", absl::StrFormat("%016x", client.info.fingerprint)},
                       {"reserved_bytes", client.reserved_bytes},
                       {"leased_bytes", client.leased_bytes},
                       {"pages", client.pages},
                       {"requests", client.requests},
                       {"pages_written", client.traffic.pages_written},
                       {"bytes_written", client.traffic.bytes_written},
                       {"pages_wanted", client.traffic.pages_wanted},
                       {"pages_found", client.traffic.pages_found},
                       {"bytes_found", client.traffic.bytes_found}});
  auto shown = nlohmann::json(status);
  shown["clients"] = std::move(clients);
  return shown.dump(2);
}

std::string to_text(const node_status& status) {
  auto text = absl::StrFormat(
    "%s of %s in use, %d pages; %d evicted\n"
    "%d of %d pages found, %d written, %d requests refused, %d leases ended by their time\n"
    "%d clients write %s and read %s\n",
    format_bytes(status.used_bytes), format_bytes(status.capacity_bytes), status.pages,
    status.evicted, status.pages_found, status.pages_wanted, status.pages_written, status.refused,
    status.expired_leases, status.client_count, format_bytes(status.reserved_bytes),
    format_bytes(status.leased_bytes));
  if (status.pages_kept + status.pages_dropped + status.unscanned_bytes > 0)
    text += absl::StrFormat(
      "memory file: %d pages of an earlier node are offered again, %d did not verify; %s left to "
      "look at\n",
      status.pages_kept, status.pages_dropped, format_bytes(status.unscanned_bytes));
  const auto capacity = status.disk_capacity_bytes;
  if (!status.disk_stores.empty())
    text += absl::StrFormat(
      "%s: %s%s in use, %d pages; %d read, %d written, %d left memory before, %d failed\n",
      status.disk_stores, format_bytes(status.disk_bytes),
      capacity == 0 ? "" : " of " + format_bytes(capacity), status.disk_pages,
      status.disk_pages_read, status.disk_pages_written, status.disk_pages_skipped,
      status.disk_pages_failed);
  for (const auto& client : status.clients)
    text += absl::StrFormat("  client %d of tenant %d, namespace %016x: writes %s, reads %s\n",
                            client.client, client.info.tenant, client.info.fingerprint,
                            format_bytes(client.reserved_bytes), format_bytes(client.leased_bytes));
  return text;
}

client_traffic operator-(const client_traffic& now, const client_traffic& before) {
  return {now.pages_written - before.pages_written, now.bytes_written - before.bytes_written,
          now.pages_wanted - before.pages_wanted, now.pages_found - before.pages_found,
          now.bytes_found - before.bytes_found};
}

/// A line of `top`.
struct active_client {
  const node_client_state* now = nullptr;
  client_traffic traffic;

  uint64_t bytes() const { return traffic.bytes_written + traffic.bytes_found; }
};

std::vector<active_client> busiest_first(const node_status& before, const node_status& now) {
  auto known = std::map<uint64_t, client_traffic>{};
  for (const auto& client : before.clients)
    known[client.client] = client.traffic;
  auto list = std::vector<active_client>{};
  for (const auto& client : now.clients)
    list.push_back({&client, client.traffic - known[client.client]});
  std::ranges::stable_sort(list, std::ranges::greater{}, &active_client::bytes);
  return list;
}

std::string share_found(const client_traffic& traffic) {
  if (traffic.pages_wanted == 0)
    return "-";
  return absl::StrFormat("%.1f", 100 * static_cast<double>(traffic.pages_found)
                                   / static_cast<double>(traffic.pages_wanted));
}

} // namespace

std::string node_activity(const node_status& before, const node_status& now, duration between) {
  const auto seconds = std::chrono::duration<double>(between).count();
  const auto rate = [seconds](uint64_t count) { return static_cast<double>(count) / seconds; };
  const auto bytes_rate
    = [rate](uint64_t bytes) { return format_bytes(static_cast<uint64_t>(rate(bytes))) + "/s"; };
  auto text = absl::StrFormat(
    "%s of %s in use, %d pages; %d clients write %s and read %s\n"
    "each second: %.1f of %.1f pages found, %.1f written, %.1f evicted, %.1f requests refused\n",
    format_bytes(now.used_bytes), format_bytes(now.capacity_bytes), now.pages, now.client_count,
    format_bytes(now.reserved_bytes), format_bytes(now.leased_bytes),
    rate(now.pages_found - before.pages_found), rate(now.pages_wanted - before.pages_wanted),
    rate(now.pages_written - before.pages_written), rate(now.evicted - before.evicted),
    rate(now.refused - before.refused));
  const auto clients = busiest_first(before, now);
  if (!clients.empty())
    text += absl::StrFormat("%8s %20s  %-16s %12s %12s %10s %7s %10s %10s\n", "client", "tenant",
                            "namespace", "writes", "reads", "pages/s", "found %", "reserved",
                            "leased");
  for (auto i = size_t{0}; i < std::min(clients.size(), shown_clients); ++i) {
    const auto& [client, traffic] = clients[i];
    text += absl::StrFormat(
      "%8d %20d  %016x %12s %12s %10.1f %7s %10s %10s\n", client->client, client->info.tenant,
      client->info.fingerprint, bytes_rate(traffic.bytes_written), bytes_rate(traffic.bytes_found),
      rate(traffic.pages_written + traffic.pages_found), share_found(traffic),
      format_bytes(client->reserved_bytes), format_bytes(client->leased_bytes));
  }
  if (clients.size() > shown_clients)
    text += absl::StrFormat("and %d less busy ones\n", clients.size() - shown_clients);
  return text;
}

node_commands::node_commands(CLI::App& app) {
  auto* node = app.add_subcommand("node", "looks at the node of this host, or of another one");
  node->require_subcommand(1);
  auto* status = node->add_subcommand("status", "shows its memory and its clients");
  status->add_flag("--json", json_, "print one JSON object");
  top_ = node->add_subcommand("top", "shows, again and again, what its clients do");
  add_duration_flag(*top_, "--interval", interval_, "how often");
  why_ = node->add_subcommand("why", "tells whose pages are called how, and why two engines share "
                                     "them or do not");
  why_
    ->add_option("OF", whose_,
                 "one or two of: the number of a client, a namespace of 16 digits (both as status "
                 "shows them), the name of a page (64 digits), a model's folder")
    ->required()
    ->expected(1, 2);
  clear_ = node->add_subcommand("clear", "removes all pages of a namespace");
  clear_->add_option("OF", whose_, "one of: a client, a namespace, a page, as for why")
    ->required()
    ->expected(1);
  clear_->add_flag("--evict-first", evict_first_,
                   "the pages stay, and leave memory before all others until they are used again");
  for (auto* each : {status, top_, why_, clear_}) {
    auto* where = each->add_option_group("where");
    where->add_option("--socket", socket_, "the node's --socket")->type_name("PATH");
    where->add_option("--address", address_, "the node's --listen")->type_name("HOST:PORT");
    where->require_option(1);
    add_tls_flags(*each, tls_);
    add_duration_flag(*each, "--timeout", timeout_, "how long to wait for it");
  }
}

std::string node_commands::place() const {
  return socket_.empty() ? address_ : "unix:" + socket_;
}

result<int> node_commands::perform() const {
  HICACHE_TRY(tls_.check());
  if (!address_.empty())
    if (const auto where = rpc::parse_endpoint(address_); !where || where->is_path())
      return fail(ec::invalid_argument,
                  "--address: '" + address_ + "' is not an address such as 10.0.0.2:7767");
  if (why_->parsed())
    return explain();
  if (clear_->parsed())
    return clear();
  return top_->parsed() ? show_activity() : show_status();
}

result<int> node_commands::explain() const {
  auto sides = std::vector<named_facts>{};
  auto asks = facts_reader{place(), socket_.empty() ? tls_ : tls_files{}, timeout_};
  for (const auto& of : whose_)
    sides.push_back(HICACHE_TRY(asks.facts_of(of)));
  const auto is_pair = sides.size() == 2;
  const auto with_folder = is_pair && (sides[0].is_folder || sides[1].is_folder);
  const auto lines = is_pair ? fact_differences(sides[0].facts, sides[1].facts, with_folder)
                             : facts_in_words(sides[0].facts);
  for (const auto& line : lines)
    std::printf("%s\n", line.c_str());
  if (is_pair && lines.empty())
    std::printf(with_folder ? "the engine has loaded what is in the folder\n"
                            : "they share their pages: all facts are equal\n");
  return is_pair && !lines.empty() ? exit_failed : exit_ok;
}

result<int> node_commands::clear() const {
  auto asks = facts_reader{place(), socket_.empty() ? tls_ : tls_files{}, timeout_};
  const auto totals = HICACHE_TRY(asks.clear(whose_.front(), evict_first_));
  std::printf(evict_first_ ? "%llu pages, %s, leave first\n" : "%llu pages, %s, removed\n",
              static_cast<unsigned long long>(totals.pages), format_bytes(totals.bytes).c_str());
  return exit_ok;
}

result<int> node_commands::show_status() const {
  const auto status
    = HICACHE_TRY(node_link{place(), socket_.empty() ? tls_ : tls_files{}, timeout_}.ask_status());
  const auto text = json_ ? to_json(status) + "\n" : to_text(status);
  std::fputs(text.c_str(), stdout);
  return exit_ok;
}

result<int> node_commands::show_activity() const {
  if (interval_ < shortest_interval)
    return fail(ec::invalid_argument, "--interval: expected at least 100ms");
  const auto stop = stop_signal{};
  const auto is_screen = ::isatty(STDOUT_FILENO) == 1;
  auto link = node_link{place(), socket_.empty() ? tls_ : tls_files{}, timeout_};
  auto before = link.ask_status();
  if (!before)
    return tl::unexpected{before.error()};
  auto seen = std::chrono::steady_clock::now();
  while (!stop.wait_for(interval_)) {
    auto now = link.ask_status();
    const auto since = std::exchange(seen, std::chrono::steady_clock::now());
    // A node that was away may have restarted its counters, so show totals.
    const auto text = !now     ? to_string(now.error()) + "\n"
                      : before ? node_activity(*before, *now, seen - since)
                               : to_text(*now);
    std::fputs(is_screen ? "\x1b[H\x1b[2J" : "", stdout);
    std::fputs((text + (is_screen ? "" : "\n")).c_str(), stdout);
    std::fflush(stdout);
    before = std::move(now);
  }
  return exit_ok;
}

} // namespace hicache
