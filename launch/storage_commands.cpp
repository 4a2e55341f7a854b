#include "launch/storage_commands.hpp"

#include "base/about.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "launch/program.hpp"
#include "runtime/admin_server.hpp"
#include "runtime/http_address.hpp"
#include "runtime/setting_flags.hpp"
#include "stores/storage_config.hpp"
#include "stores/storage_settings.hpp"

#include <absl/strings/ascii.h>
#include <absl/strings/str_format.h>
#include <absl/time/time.h>
#include <nlohmann/json.hpp>

#include <httplib.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace hicache {

namespace {

using json = nlohmann::json;

constexpr auto storage_path = "/hicache/storage-backend";
constexpr auto tiers_path = "/hicache/storage-backend/tiers";

/// Extra time beyond the deadline for the answer of a busy server.
constexpr auto patience = std::chrono::seconds{5};

/// httplib's client on a Unix socket.
class unix_client final : public httplib::ClientImpl {
public:
  explicit unix_client(std::string path) : ClientImpl("localhost"), path_(std::move(path)) {}

private:
  bool create_and_connect_socket(Socket& socket, httplib::Error& error) override {
    socket.sock = connect_to_unix_socket(path_);
    if (!socket.is_open())
      error = httplib::Error::Connection;
    return socket.is_open();
  }

  std::string path_;
};

std::unique_ptr<httplib::ClientImpl> make_client(const rpc::endpoint& where) {
  if (where.is_path())
    return std::make_unique<unix_client>(where.path());
  return std::make_unique<httplib::ClientImpl>(where.host, where.port);
}

/// Client of the admin server named by the flags.
class admin_client {
public:
  static result<admin_client> make(const std::string& address, const std::string& token_file) {
    auto where = HICACHE_TRY(about_input("--admin", parse_http_address(address)));
    auto token = std::string{};
    if (!token_file.empty())
      token = HICACHE_TRY(about_input("--token-file", read_admin_token(token_file)));
    return admin_client{std::move(where), std::move(token)};
  }

  /// Sends one request.
  /// @returns the answer, whatever its status; peer_unreachable without one from an admin server
  result<std::pair<int, json>> ask(const std::string& method, const std::string& path,
                                   const std::string& body, duration time) const {
    const auto client = make_client(where_);
    client->set_connection_timeout(time);
    client->set_read_timeout(time);
    auto request = httplib::Request{};
    request.method = method;
    request.path = path;
    request.body = body;
    if (!body.empty())
      request.set_header("Content-Type", "application/json");
    if (!token_.empty())
      request.set_header("Authorization", "Bearer " + token_);
    const auto answer = client->send(request);
    const auto name = to_string(where_);
    if (!answer && answer.error() == httplib::Error::Connection)
      return fail(ec::peer_unreachable,
                  "cannot connect to " + name + "; expected a rank that runs with --admin-listen");
    if (!answer)
      return fail(ec::peer_unreachable,
                  absl::StrFormat("%s gave no answer within %gs", name,
                                  std::chrono::duration<double>(time).count()));
    auto content = json::parse(answer->body, nullptr, false);
    if (!content.is_object())
      return fail(ec::peer_unreachable,
                  absl::StrFormat("%s is no admin server of hicache; it answers with status %d",
                                  name, answer->status));
    return std::pair{answer->status, std::move(content)};
  }

private:
  admin_client(rpc::endpoint where, std::string token)
    : where_(std::move(where)), token_(std::move(token)) {}

  rpc::endpoint where_;
  std::string token_;
};

/// Formats a field of an answer; texts without quotes.
std::string shown(const json& answer, const char* key) {
  const auto field = answer.find(key);
  if (field == answer.end() || field->is_null())
    return "none";
  return field->is_string() ? field->get<std::string>() : field->dump();
}

void print_attachment(const json& answer) {
  std::cout << "backend          " << shown(answer, "hicache_storage_backend")
            << "\nextra config     " << shown(answer, "hicache_storage_backend_extra_config")
            << "\nprefetch policy  " << shown(answer, "hicache_storage_prefetch_policy") << '\n';
  const auto status = answer.find("hicache_storage_status");
  if (status == answer.end() || !status->is_object())
    return;
  for (const auto* key : {"reads", "writes"}) {
    const auto direction = status->value(key, json::object());
    const auto state = shown(direction, "state");
    std::cout << absl::StrFormat("%-16s %s", key, state == "closed" ? "up" : state);
    if (state != "closed")
      std::cout << absl::StrFormat(
        " (%s) since %s", shown(direction, "cause"),
        absl::FormatTime("%Y-%m-%d %H:%M:%S",
                         absl::FromUnixSeconds(direction.value("since_s", int64_t{0})),
                         absl::LocalTimeZone()));
    std::cout << '\n';
  }
  std::cout << "stuck calls      " << shown(*status, "stuck_calls") << ", which keep "
            << shown(*status, "quarantined_pages") << " pages of L2\n";
  for (auto number = 1; const auto& tier : answer.value("hicache_storage_tiers", json::array())) {
    const auto capacity = tier.value("capacity_bytes", uint64_t{0});
    const auto over_budget = tier.value("over_budget", uint64_t{0});
    std::cout << absl::StrFormat(
      "tier %d           %s, %s: %d objects, %s%s; %d hits, %d misses, %d errors; %s written%s%s\n",
      number++, shown(tier, "backend"), tier.value("up", false) ? "up" : "down",
      tier.value("objects", uint64_t{0}), format_bytes(tier.value("bytes", uint64_t{0})),
      capacity == 0 ? "" : " of " + format_bytes(capacity), tier.value("hits", uint64_t{0}),
      tier.value("misses", uint64_t{0}), tier.value("errors", uint64_t{0}),
      format_bytes(tier.value("written_bytes", uint64_t{0})),
      over_budget == 0 ? "" : absl::StrFormat(", %d objects over budget", over_budget),
      shown(tier, "detail").empty() ? "" : "; " + shown(tier, "detail"));
  }
}

} // namespace

storage_commands::storage_commands(CLI::App& app) : app_(app) {
  auto* storage = app.add_subcommand("storage", "shows and changes the L3 of an instance that runs "
                                                "with --admin-listen");
  storage->require_subcommand(1);
  auto* show = storage->add_subcommand("show", "what is attached");
  attach_ = storage->add_subcommand("attach", "attaches L3 on all ranks, or on none");
  detach_ = storage->add_subcommand(
    "detach", "detaches L3 on all ranks, or on none, once what is in flight has ended");
  for (auto* command : {show, attach_, detach_}) {
    command->add_option("--admin", admin_, "the instance's admin server")
      ->type_name("HOST:PORT|unix:PATH")
      ->capture_default_str();
    command->add_option("--token-file", token_file_, "file with the server's token")
      ->type_name("FILE");
    add_duration_flag(*command, "--timeout", timeout_, "how long it may take");
    command->add_flag("--json", json_, "print the server's answer, one JSON object");
  }
  auto* backend
    = attach_->add_option("--backend", backend_, std::string{any_store} + ", or tiered");
  auto* tier = attach_
                 ->add_option("--tier", tier_,
                              "instead of it, a store to add to the tiers of an attached "
                              "L3: as --backend, but not tiered")
                 ->type_name("NAME")
                 ->excludes(backend);
  attach_->add_option("--at", at_, "the tier's number, 1 for the fastest; the last one if absent")
    ->type_name("N")
    ->needs(tier)
    ->check(CLI::PositiveNumber);
  attach_
    ->add_option("--extra-config", extra_config_,
                 "settings of L3, or of the tier, or @FILE in JSON, TOML or YAML, which is read "
                 "here")
    ->type_name("JSON|@FILE");
  attach_
    ->add_option("--prefetch-policy", prefetch_policy_, "when a prefetch ends; as it was if absent")
    ->excludes(tier);
  detach_->add_option("--tier", tier_, "take out this tier of L3 alone: its store or its number")
    ->type_name("NAME|N");
}

result<storage_commands::http_request> storage_commands::request() const {
  if (attach_->parsed())
    return attach_request();
  if (!detach_->parsed())
    return http_request{"GET", storage_path, ""};
  const auto is_word = [](char x) { return absl::ascii_isalnum(static_cast<unsigned char>(x)); };
  if (!std::ranges::all_of(tier_, is_word))
    return fail(ec::invalid_argument, "--tier: '" + tier_
                                        + "' is no tier; expected the name of its store, or its "
                                          "number");
  const auto path = tier_.empty() ? storage_path : tiers_path + ("/" + tier_);
  const auto seconds = std::chrono::duration<double>(timeout_).count();
  return http_request{"DELETE", absl::StrFormat("%s?timeout_s=%g", path, seconds), ""};
}

result<storage_commands::http_request> storage_commands::attach_request() const {
  if (backend_.empty() == tier_.empty())
    return fail(ec::invalid_argument, "attach: expected --backend or --tier");
  const auto extra = HICACHE_TRY(about_input("--extra-config", storage_config_json(extra_config_)));
  const auto is_tier = !tier_.empty();
  auto body = json{{"hicache_storage_backend", is_tier ? tier_ : backend_},
                   {"timeout_s", std::chrono::duration<double>(timeout_).count()}};
  if (!extra.empty())
    body["hicache_storage_backend_extra_config_json"] = extra;
  if (!prefetch_policy_.empty())
    body["hicache_storage_prefetch_policy"] = prefetch_policy_;
  if (at_)
    body["at"] = *at_;
  return is_tier ? http_request{"POST", tiers_path, body.dump()}
                 : http_request{"PUT", storage_path, body.dump()};
}

result<int> storage_commands::perform() const {
  const auto client = HICACHE_TRY(admin_client::make(admin_, token_file_));
  const auto wanted = HICACHE_TRY(request());
  const auto patient = attach_->parsed() || detach_->parsed();
  const auto [status, content] = HICACHE_TRY(
    client.ask(wanted.method, wanted.path, wanted.body, patient ? timeout_ + patience : timeout_));
  if (json_)
    std::cout << content.dump(2) << '\n';
  else if (status == 200 && content.contains("success"))
    std::cout << shown(content, "message") << '\n';
  else if (status == 200)
    print_attachment(content);
  else if (status == 401)
    complain(app_, {ec::invalid_argument,
                    admin_
                      + (token_file_.empty() ? " needs a token; expected --token-file"
                                             : " refuses the token in " + token_file_)});
  else
    complain(app_, {ec::invalid_argument, shown(content, "message")});
  std::cout.flush();
  return status == 200 ? exit_ok : exit_failed;
}

} // namespace hicache
