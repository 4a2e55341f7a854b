#include "launch/node_commands.hpp"

#include "backends/ask.hpp"
#include "base/units.hpp"
#include "launch/program.hpp"
#include "launch/rank_config.hpp"
#include "messages/interfaces.hpp"
#include "messages/system_config.hpp"
#include "rpc/network.hpp"

#include <absl/strings/str_format.h>
#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <utility>

namespace hicache {

namespace {

result<node_status> ask_status(const std::string& socket, duration timeout) {
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto network = rpc_network{system, tls_files{}};
  const auto connector = network.node_connector();
  const auto found = ask<caf::strong_actor_ptr>(system, connector, caf::timespan{timeout},
                                                atom::connect_v, "unix:" + socket);
  if (!found)
    return tl::unexpected{found.error()};
  return ask<node_status>(system, caf::actor_cast<node_actor>(*found), caf::timespan{timeout},
                          atom::status_v, status_query{});
}

std::string to_json(const node_status& status) {
  auto clients = nlohmann::json::array();
  for (const auto& client : status.clients)
    clients.push_back({{"client", client.client},
                       {"tenant", client.info.tenant},
                       {"fingerprint", absl::StrFormat("%016x", client.info.fingerprint)},
                       {"reserved_bytes", client.reserved_bytes},
                       {"leased_bytes", client.leased_bytes},
                       {"pages", client.pages},
                       {"requests", client.requests}});
  return nlohmann::json{{"capacity_bytes", status.capacity_bytes},
                        {"used_bytes", status.used_bytes},
                        {"pages", status.pages},
                        {"evicted", status.evicted},
                        {"reserved_bytes", status.reserved_bytes},
                        {"leased_bytes", status.leased_bytes},
                        {"reservations", status.reservations},
                        {"leases", status.leases},
                        {"expired_leases", status.expired_leases},
                        {"refused", status.refused},
                        {"pages_wanted", status.pages_wanted},
                        {"pages_found", status.pages_found},
                        {"pages_written", status.pages_written},
                        {"clients", std::move(clients)}}
    .dump(2);
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
  for (const auto& client : status.clients)
    text += absl::StrFormat("  client %d of tenant %d, namespace %016x: writes %s, reads %s\n",
                            client.client, client.info.tenant, client.info.fingerprint,
                            format_bytes(client.reserved_bytes), format_bytes(client.leased_bytes));
  return text;
}

} // namespace

node_commands::node_commands(CLI::App& app) {
  node_ = app.add_subcommand("node", "looks at the node of this host");
  node_->require_subcommand(1);
  auto* status = node_->add_subcommand("status", "shows its memory and its clients");
  status->add_option("--socket", socket_, "the node's --socket")->type_name("PATH")->required();
  add_duration_flag(*status, "--timeout", timeout_, "how long to wait for it");
  status->add_flag("--json", json_, "print one JSON object");
}

bool node_commands::chosen() const {
  return node_->parsed();
}

result<int> node_commands::perform() const {
  const auto status = ask_status(socket_, timeout_);
  if (!status)
    return tl::unexpected{status.error()};
  const auto text = json_ ? to_json(*status) + "\n" : to_text(*status);
  std::fputs(text.c_str(), stdout);
  return exit_ok;
}

} // namespace hicache
