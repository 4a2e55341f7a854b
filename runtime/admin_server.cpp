#include "runtime/admin_server.hpp"

#include "base/about.hpp"
#include "base/socket_address.hpp"
#include "base/try.hpp"
#include "runtime/http_listener.hpp"
#include "runtime/network_flags.hpp"
#include "stores/tier_list.hpp"

#include <absl/strings/str_join.h>
#include <nlohmann/json.hpp>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>

#include <strings.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace hicache {

namespace {

using json = nlohmann::json;
using http_request = httplib::Request;
using http_response = httplib::Response;

constexpr auto storage_path = "/hicache/storage-backend";
/// New tiers are posted here; each has an address below it.
constexpr auto tiers_path = "/hicache/storage-backend/tiers";
constexpr auto default_deadline = std::chrono::seconds{30};

/// Strips the port and the brackets of an IPv6 address from a Host header.
std::string host_of(const std::string& header) {
  if (header.starts_with('['))
    return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.find(':'));
}

/// True if the header is "Bearer TOKEN". Constant time for all tokens of one length.
bool carries(const std::string& header, const std::string& token) {
  constexpr auto scheme = std::string_view{"bearer "};
  if (header.size() != scheme.size() + token.size())
    return false;
  const auto same_letter = [](char a, char b) { return a == std::tolower(b); };
  return std::equal(scheme.begin(), scheme.end(), header.begin(), same_letter)
         && CRYPTO_memcmp(header.data() + scheme.size(), token.data(), token.size()) == 0;
}

// -- requests -----------------------------------------------------------------

/// Parsed PUT, POST or DELETE request.
struct change_request {
  storage_attachment wanted;
  /// POST: the new tier's number.
  std::optional<size_t> at;
  std::chrono::nanoseconds deadline = default_deadline;
};

tl::unexpected<error> bad(std::string what) {
  return fail(ec::invalid_argument, std::move(what));
}

/// Parses an object of bounded depth. Rejects text that starts with '@', because a client must not
/// make a rank read files.
/// @param name What the text is, for messages; `example` is a valid one.
result<json> parse_object(const std::string& text, const std::string& name, const char* example) {
  auto too_deep = false;
  const auto depth = [&](int level, json::parse_event_t, json&) {
    too_deep |= level > limits::admin_json_levels;
    return !too_deep;
  };
  const auto object = json::parse(text, depth, false);
  if (too_deep)
    return bad(name + " has more than " + std::to_string(limits::admin_json_levels)
               + " levels; expected one such as " + example);
  if (!object.is_object())
    return bad(name + " is no JSON object; expected one such as " + example);
  return object;
}

result<std::chrono::nanoseconds> parse_deadline(double seconds) {
  const auto most = std::chrono::duration<double>(limits::admin_change_time);
  if (!(seconds > 0) || seconds > most.count())
    return bad("timeout_s: expected a number of seconds above 0 and up to "
               + std::to_string(static_cast<int>(most.count())));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
    std::chrono::duration<double>(seconds));
}

result<void> take_extra(change_request& change, const json& object) {
  if (!change.wanted.extra_config.empty())
    return bad("the extra config is given twice, as an object and as text; expected one of them");
  change.wanted.extra_config = object.dump();
  return {};
}

/// A key of all PUT and POST requests, or of one of them.
/// @param others The keys of that request alone, for messages.
result<void> take(change_request& change, const std::string& key, const json& value,
                  const std::string& others) {
  const auto text = [&](std::string& target) -> result<void> {
    if (!value.is_string())
      return bad("key '" + key + "' holds " + value.type_name() + "; expected a string");
    target = value.get<std::string>();
    return {};
  };
  if (key == "hicache_storage_backend")
    return text(change.wanted.backend);
  if (key == "hicache_storage_prefetch_policy" && key == others)
    return text(change.wanted.prefetch_policy);
  if (key == "at" && key == others) {
    if (!value.is_number_unsigned())
      return bad("key 'at' holds " + value.dump()
                 + "; expected the number of a tier, 1 for the first");
    change.at = value.get<size_t>();
    return {};
  }
  if (key == "timeout_s") {
    change.deadline = HICACHE_TRY(parse_deadline(value.is_number() ? value.get<double>() : 0));
    return {};
  }
  if (key == "hicache_storage_backend_extra_config_json") {
    auto content = std::string{};
    if (auto taken = text(content); !taken || content.empty())
      return taken;
    const auto extra
      = HICACHE_TRY(parse_object(content, "key '" + key + "'", R"({"path": "/kv"})"));
    return take_extra(change, extra);
  }
  if (key == "hicache_storage_backend_extra_config") {
    if (!value.is_object())
      return bad("key '" + key + "' holds " + value.type_name() + "; expected an object");
    return take_extra(change, value);
  }
  return bad("key '" + key
             + "' is not known; expected hicache_storage_backend, "
               "hicache_storage_backend_extra_config, "
               "hicache_storage_backend_extra_config_json, "
             + others + " or timeout_s");
}

/// @param others The key of this request alone.
result<change_request> parse_attach(const std::string& body, const std::string& others) {
  const auto object
    = HICACHE_TRY(parse_object(body, "the body", R"({"hicache_storage_backend": "file"})"));
  auto change = change_request{};
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) // SGLang's clients send null for a field they leave out.
      HICACHE_TRY(take(change, key, value, others));
  if (change.wanted.backend.empty())
    return bad("key 'hicache_storage_backend' is missing; expected the name of a backend");
  return change;
}

result<change_request> parse_detach(const httplib::Params& parameters) {
  auto change = change_request{};
  for (const auto& [name, value] : parameters) {
    if (name != "timeout_s")
      return bad("parameter '" + name + "' is not known; expected timeout_s");
    const auto number = json::parse(value, nullptr, false);
    change.deadline = HICACHE_TRY(parse_deadline(number.is_number() ? number.get<double>() : 0));
  }
  return change;
}

// -- answers ------------------------------------------------------------------

int status_of(ec code) {
  switch (code) {
    case ec::invalid_argument:
    case ec::unsupported:
      return 400;
    case ec::rank_unresponsive:
    case ec::ranks_diverged:
    case ec::peer_unreachable:
    case ec::stopping:
      return 503;
    case ec::deadline_exceeded:
      return 504;
    default:
      return 409; // A rank failed.
  }
}

void answer(http_response& to, int status, const json& body) {
  to.status = status;
  // Messages may quote client input, which need not be UTF-8.
  to.set_content(body.dump(-1, ' ', false, json::error_handler_t::replace) + "\n",
                 "application/json");
}

void refuse(http_response& to, int status, const std::string& message, const char* code) {
  answer(to, status, {{"success", false}, {"message", message}, {"code", code}});
}

void refuse(http_response& to, const error& why) {
  refuse(to, status_of(why.code), why.detail.empty() ? sentence(why.code) : why.detail,
         to_string(why.code));
}

const char* words_for(int status) {
  if (status == 400)
    return "the request is not HTTP/1.1, is too long or did not arrive in time";
  return status == 414 ? "the address is too long" : "the request cannot be served";
}

/// Adds a message to errors that httplib produces itself.
httplib::Server::HandlerResponse explain(const http_request& asked, http_response& to) {
  // httplib would truncate the answer to the requested ranges, even if it rejected them.
  if (!asked.ranges.empty())
    return httplib::Server::HandlerResponse::Unhandled;
  if (to.body.empty())
    refuse(to, to.status, words_for(to.status), "malformed_message");
  return httplib::Server::HandlerResponse::Handled;
}

void apologise(const http_request& asked, http_response& to, const std::exception_ptr& what) {
  try {
    std::rethrow_exception(what);
  } catch (const std::exception& ex) {
    spdlog::error("{} {} ended with an exception: {}", asked.method, asked.path, ex.what());
  } catch (...) {
    spdlog::error("{} {} ended with an exception", asked.method, asked.path);
  }
  refuse(to, 500, "an exception ended the request; the rank's log names it", "none");
}

json to_json(const storage_status& status) {
  const auto direction = [](const storage_status::direction& x) {
    return json{
      {"state", x.state}, {"cause", x.cause}, {"since_s", x.since_s}, {"openings", x.openings}};
  };
  return {{"up", status.is_up()},
          {"reads", direction(status.reads)},
          {"writes", direction(status.writes)},
          {"stuck_calls", status.stuck_calls},
          {"quarantined_pages", status.quarantined_pages}};
}

json to_json(const storage_attachment& attached) {
  const auto& text = attached.extra_config;
  // At startup the settings may be given as a file name, which is shown as it is.
  auto extra = text.empty() ? json::object() : json::parse(text, nullptr, false);
  if (extra.is_discarded())
    extra = text;
  return {
    {"hicache_storage_backend", attached.backend.empty() ? json() : json(attached.backend)},
    {"hicache_storage_backend_extra_config", std::move(extra)},
    {"hicache_storage_prefetch_policy", attached.prefetch_policy},
  };
}

/// Methods that an address offers; none: nothing is there.
std::vector<std::string> methods_at(const std::string& path) {
  if (path == storage_path)
    return {"GET", "HEAD", "PUT", "DELETE"};
  if (path == "/healthz")
    return {"GET", "HEAD"};
  if (path == tiers_path)
    return {"POST"};
  if (path.starts_with(std::string{tiers_path} + "/"))
    return {"DELETE"};
  return {};
}

// -- server -------------------------------------------------------------------

class http_admin_server final : public admin_server {
public:
  http_admin_server(const admin_options& options, std::string token, storage_admin& storage)
    : token_(std::move(token)), storage_(storage),
      listener_(http_limits{.request_time = options.request_time}) {
    using outcome = httplib::Server::HandlerResponse;
    listener_.set_pre_routing_handler([this](const http_request& asked, http_response& to) {
      return route(asked, to) ? outcome::Handled : outcome::Unhandled;
    });
    listener_.Put(storage_path,
                  [this](const http_request& asked, http_response& to,
                         const httplib::ContentReader& body) { put(asked, to, body); });
    listener_.Post(tiers_path,
                   [this](const http_request& asked, http_response& to,
                          const httplib::ContentReader& body) { post(asked, to, body); });
    listener_.set_exception_handler(apologise);
    listener_.set_error_handler(httplib::Server::HandlerWithResponse{explain});
  }

  result<void> listen(const rpc::endpoint& where) {
    auto chosen = HICACHE_TRY(listener_.start(where));
    address_ = to_string(chosen);
    if (!chosen.is_path())
      host_names_ = {"localhost", chosen.host, machine_name()};
    return {};
  }

  const std::string& address() const override { return address_; }

private:
  /// Answers every request except a valid PUT or POST, whose body must be read first.
  /// @returns false for these
  bool route(const http_request& asked, http_response& to) {
    const auto reads = asked.method == "GET" || asked.method == "HEAD";
    const auto methods = methods_at(asked.path);
    if (!is_for_us(asked)) {
      refuse(
        to, 421,
        "the Host header names another machine; expected an IP address, localhost, the host of "
        "--admin-listen or this machine's name",
        "invalid_argument");
    } else if (asked.path == "/healthz" && reads) {
      to.status = 200;
      to.set_content("ok", "text/plain");
    } else if (methods.empty()) {
      refuse(to, 404, "nothing is at this address; expected " + std::string{storage_path},
             "not_found");
    } else if (std::ranges::find(methods, asked.method) == methods.end()) {
      to.set_header("Allow", absl::StrJoin(methods, ", "));
      refuse(to, 405, "the method " + asked.method + " is not offered here", "unsupported");
    } else if (!token_.empty() && !carries(asked.get_header_value("Authorization"), token_)) {
      to.set_header("WWW-Authenticate", "Bearer");
      refuse(to, 401, "the token is missing or wrong; expected Authorization: Bearer TOKEN",
             "invalid_argument");
    } else if (reads) {
      show(to);
    } else if (asked.method == "DELETE") {
      remove(asked, to);
    } else {
      return false;
    }
    return true;
  }

  void show(http_response& to) {
    auto shown = to_json(storage_.show());
    if (const auto status = storage_.status())
      shown["hicache_storage_status"] = to_json(*status);
    for (const auto& [name, health, written_bytes, over_budget] : storage_.tiers())
      shown["hicache_storage_tiers"].push_back({{"backend", name},
                                                {"up", health.ok},
                                                {"detail", health.detail},
                                                {"objects", health.objects},
                                                {"bytes", health.bytes},
                                                {"capacity_bytes", health.capacity_bytes},
                                                {"hits", health.counters.hits},
                                                {"misses", health.counters.misses},
                                                {"errors", health.counters.errors},
                                                {"corrupt", health.counters.corrupt},
                                                {"evicted", health.counters.evicted},
                                                {"written_bytes", written_bytes},
                                                {"over_budget", over_budget}});
    answer(to, 200, shown);
  }

  /// False if the Host header names another server. Prevents DNS rebinding: a web page can point
  /// its own name at this machine and make a browser send requests here.
  bool is_for_us(const http_request& asked) const {
    const auto header = asked.get_header_value("Host");
    const auto host = host_of(header);
    const auto same = [&](const std::string& name) {
      return !name.empty() && strcasecmp(name.c_str(), host.c_str()) == 0;
    };
    return host_names_.empty() || header.empty() || is_ip_address(host)
           || std::any_of(host_names_.begin(), host_names_.end(), same);
  }

  void put(const http_request& asked, http_response& to, const httplib::ContentReader& reader) {
    if (const auto body = receive(asked, to, reader))
      perform(to, parse_attach(*body, "hicache_storage_prefetch_policy"),
              [this](const change_request& change) -> result<std::string> {
                HICACHE_TRY(storage_.attach(change.wanted, change.deadline));
                return "L3 is now " + change.wanted.backend;
              });
  }

  void post(const http_request& asked, http_response& to, const httplib::ContentReader& reader) {
    if (const auto body = receive(asked, to, reader))
      perform(to, parse_attach(*body, "at"), [this](const change_request& change) {
        const auto& tier = change.wanted;
        return change_tiers(
          with_tier(storage_.show().extra_config, tier.backend, tier.extra_config, change.at),
          change.deadline, tier.backend + " is now a tier of L3");
      });
  }

  void remove(const http_request& asked, http_response& to) {
    perform(
      to, parse_detach(asked.params),
      [this, &asked](const change_request& change) -> result<std::string> {
        if (asked.path == storage_path)
          return storage_.detach(change.deadline).map([] { return std::string{"L3 is detached"}; });
        const auto tier = asked.path.substr(std::strlen(tiers_path) + 1);
        return change_tiers(without_tier(storage_.show().extra_config, tier), change.deadline,
                            "tier " + tier + " of L3 is detached");
      });
  }

  /// Gives the attached L3 another extra config.
  /// @returns the message
  result<std::string> change_tiers(const result<std::string>& extra_config,
                                   std::chrono::nanoseconds deadline, const std::string& message) {
    const auto wanted = HICACHE_TRY(extra_config);
    HICACHE_TRY(storage_.attach({storage_.show().backend, wanted, {}}, deadline));
    return message;
  }

  /// @returns nothing if the request is refused
  std::optional<std::string> receive(const http_request& asked, http_response& to,
                                     const httplib::ContentReader& reader) const {
    auto body = std::string{};
    if (const auto status = read(asked, reader, body); status == 413)
      refuse(to, status,
             "the body is longer than " + std::to_string(limits::admin_body_bytes) + " bytes",
             "limit_reached");
    else if (status != 200)
      refuse(to, status, "the body did not arrive; expected JSON", "malformed_message");
    else if (!asked.params.empty())
      refuse(to, error{ec::invalid_argument, "parameter '" + asked.params.begin()->first
                                               + "' is not known; expected JSON alone"});
    else
      return body;
    return std::nullopt;
  }

  /// @returns the status: 200, 400 or 413
  static int read(const http_request& asked, const httplib::ContentReader& reader,
                  std::string& body) {
    if (asked.is_multipart_form_data())
      return 400;
    // Without either header there is no body, but httplib would wait for one.
    if (!asked.has_header("Content-Length") && !asked.has_header("Transfer-Encoding"))
      return 200;
    if (asked.get_header_value<uint64_t>("Content-Length") > limits::admin_body_bytes)
      return 413;
    auto too_long = false;
    const auto whole = reader([&](const char* part, size_t size) {
      too_long = body.size() + size > limits::admin_body_bytes;
      if (!too_long)
        body.append(part, size);
      return !too_long;
    });
    return too_long ? 413 : whole ? 200 : 400;
  }

  /// @param function Returns the message for the client.
  template <class Function>
  void perform(http_response& to, const result<change_request>& change, Function function) {
    if (!change)
      return refuse(to, change.error());
    const auto alone = std::unique_lock{changing_, std::try_to_lock};
    if (!alone)
      return refuse(to, 409, "another change is under way; try again when it is over",
                    "limit_reached");
    const result<std::string> done = function(*change);
    if (!done)
      return refuse(to, done.error());
    answer(to, 200, {{"success", true}, {"message", *done}});
  }

  const std::string token_;
  storage_admin& storage_;
  std::mutex changing_;
  std::string address_;
  /// Accepted host names; empty for a Unix socket, which accepts any.
  std::vector<std::string> host_names_;
  // Last member: its threads use the others.
  http_listener listener_;
};

} // namespace

result<void> check_admin_options(const admin_options& options) {
  const auto where = HICACHE_TRY(about_input("--admin-listen", parse_http_address(options.listen)));
  if (options.token_file.empty() && !where.is_path())
    return bad("--admin-listen: every user of this machine reaches " + options.listen
               + "; expected --admin-token-file as well, or a Unix socket, unix:PATH");
  return {};
}

result<std::string> read_admin_token(const std::string& file) {
  using std::filesystem::perms;
  auto status = std::error_code{};
  const auto found = std::filesystem::status(file, status);
  auto stream = std::ifstream{};
  if (std::filesystem::is_regular_file(found))
    stream.open(file);
  auto token = std::string{};
  if (!stream.is_open())
    return bad("cannot read the file " + file);
  const auto foreign
    = perms::group_read | perms::group_write | perms::others_read | perms::others_write;
  if ((found.permissions() & foreign) != perms::none)
    return bad(file + " is open to others than its owner; expected it after chmod 600");
  std::getline(stream, token);
  constexpr auto blank = " \t\r";
  token.erase(0, token.find_first_not_of(blank));
  token.erase(token.find_last_not_of(blank) + 1);
  const auto visible = [](char x) { return x > ' ' && x <= '~'; };
  if (token.size() < 16 || token.size() > 1024 || !std::all_of(token.begin(), token.end(), visible))
    return bad("the first line of " + file
               + " is no token; expected 16 to 1024 visible ASCII characters");
  return token;
}

result<std::unique_ptr<admin_server>> admin_server::start(const admin_options& options,
                                                          storage_admin& storage) {
  HICACHE_TRY(check_admin_options(options));
  auto token = std::string{};
  if (!options.token_file.empty())
    token = HICACHE_TRY(about_input("--admin-token-file", read_admin_token(options.token_file)));
  auto server = std::make_unique<http_admin_server>(options, std::move(token), storage);
  HICACHE_TRY(about_input("--admin-listen", server->listen(*parse_http_address(options.listen))));
  return server;
}

} // namespace hicache
