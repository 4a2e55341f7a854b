#include "backends/s3/s3_client.hpp"

#include "backends/object_parts.hpp"
#include "backends/s3/s3_replies.hpp"
#include "base/immovable.hpp"
#include "base/try.hpp"
#include "hicache/storage_backend.hpp"

#include <absl/strings/str_cat.h>

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>
#include <unordered_map>

namespace hicache {

namespace {

/// Repetitions are delayed by a random time up to base * 2^n, at most `most` ("Exponential Backoff
/// And Jitter", AWS Architecture Blog: full jitter).
constexpr auto attempts_max = 5;
constexpr auto delay_base = std::chrono::milliseconds{50};
constexpr auto delay_most = std::chrono::milliseconds{2000};

/// A transfer that stands still for this long has failed.
constexpr auto stall_seconds = 10L;

/// A server that has not said by then whether it wants the body does not know the question.
constexpr auto continue_ms = 300L;

/// Of a reply's body that nobody takes.
constexpr auto text_max = size_t{64} << 10;

constexpr auto buffer_bytes = 512L << 10;

struct curl_deleter {
  void operator()(CURL* handle) const noexcept { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
  void operator()(CURLU* url) const noexcept { curl_url_cleanup(url); }
  void operator()(char* text) const noexcept { curl_free(text); }
};

using easy_ptr = std::unique_ptr<CURL, curl_deleter>;
using list_ptr = std::unique_ptr<curl_slist, curl_deleter>;

struct multi_deleter {
  void operator()(CURLM* handle) const noexcept { curl_multi_cleanup(handle); }
};

/// libcurl's global state, for as long as the process lives.
void prepare_curl() {
  static const auto code = curl_global_init(CURL_GLOBAL_DEFAULT);
  static_cast<void>(code);
}

/// A request on its way.
struct transfer {
  s3_request* request = nullptr;
  s3_credentials credentials;
  easy_ptr easy;
  list_ptr headers;
  uint64_t sent = 0;
  bool is_cut = false;
  std::array<char, CURL_ERROR_SIZE> trouble{};
};

long status_of(CURL* easy) {
  auto status = 0L;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

size_t take_bytes(char* data, size_t, size_t count, void* user) noexcept {
  auto& self = *static_cast<transfer*>(user);
  auto& request = *self.request;
  const auto status = status_of(self.easy.get());
  if (!request.on_bytes || (status != 200 && status != 206)) {
    request.text.append(data, std::min(count, text_max - request.text.size()));
    return count;
  }
  if (!request.on_bytes(request.received, std::as_bytes(std::span{data, count}))) {
    self.is_cut = true;
    return 0;
  }
  request.received += count;
  return count;
}

size_t give_bytes(char* target, size_t, size_t room, void* user) noexcept {
  auto& self = *static_cast<transfer*>(user);
  const auto& body = self.request->body;
  const auto count = std::min<uint64_t>(room, total_bytes(body) - self.sent);
  gather(part_of<const std::byte>(body, self.sent, count), reinterpret_cast<std::byte*>(target));
  self.sent += count;
  return count;
}

int seek_body(void* user, curl_off_t offset, int origin) noexcept {
  if (origin != SEEK_SET)
    return CURL_SEEKFUNC_CANTSEEK;
  static_cast<transfer*>(user)->sent = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::string header_of(CURL* easy, const char* name) {
  curl_header* found = nullptr;
  return curl_easy_header(easy, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value : "";
}

/// Whether a later attempt may succeed.
bool is_transient(const s3_request& request) {
  // 409: another write of the object is going on.
  return request.status == 409 || request.status == 429 || request.status == 500
         || request.status == 502 || request.status == 503 || request.status == 504
         || (request.status == 400 && parse_s3_fault(request.text).code == "RequestTimeout");
}

bool is_about_certificates(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE
         || code == CURLE_SSL_CERTPROBLEM;
}

bool has_body(const s3_request& request) {
  return request.method == "PUT" || request.method == "POST";
}

} // namespace

/// Handles that one call uses at a time. Connections stay open between calls.
struct s3_client::session {
  session() : multi(curl_multi_init()) {}

  std::unique_ptr<CURLM, multi_deleter> multi;
  std::vector<easy_ptr> idle;
  std::minstd_rand random{std::random_device{}()};
};

/// The requests of one call.
class s3_exchange : immovable {
public:
  s3_exchange(s3_client& client, std::span<s3_request> requests, time_point deadline)
    : client_(client), session_(client.borrow()), deadline_(deadline) {
    for (auto& request : requests)
      ready_.push_back({&request});
  }

  ~s3_exchange() { client_.idle_.give_back(std::move(session_)); }

  void run() {
    while (!ready_.empty() || !active_.empty() || !later_.empty()) {
      const auto now = client_.clock_.now();
      if (now >= deadline_)
        break;
      for (; !later_.empty() && later_.begin()->first <= now; later_.erase(later_.begin()))
        ready_.push_back(later_.begin()->second);
      while (!ready_.empty() && active_.size() < client_.where_.connections) {
        start(ready_.front());
        ready_.pop_front();
      }
      auto running = 0;
      curl_multi_perform(session_->multi.get(), &running);
      if (!take_finished())
        curl_multi_poll(session_->multi.get(), nullptr, 0, wait_from(now), nullptr);
    }
    give_up();
  }

private:
  struct attempt {
    s3_request* request = nullptr;
    int number = 1;
  };

  struct started {
    attempt which;
    std::unique_ptr<transfer> on_way;
  };

  int wait_from(time_point now) const {
    auto until = deadline_;
    if (!later_.empty())
      until = std::min(until, later_.begin()->first);
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(
      std::min<duration>(until - now, std::chrono::seconds{1}));
    return std::max(1, static_cast<int>(wait.count()));
  }

  void start(attempt which) {
    auto& request = *which.request;
    request.status = 0;
    request.received = 0;
    request.text.clear();
    auto made = std::make_unique<transfer>();
    made->request = &request;
    if (session_->idle.empty()) {
      made->easy.reset(curl_easy_init());
    } else {
      made->easy = std::move(session_->idle.back());
      session_->idle.pop_back();
    }
    set_options(*made);
    auto* const easy = made->easy.get();
    curl_multi_add_handle(session_->multi.get(), easy);
    active_.emplace(easy, started{which, std::move(made)});
  }

  void set_options(transfer& made) const {
    auto& request = *made.request;
    const auto path = client_.path_ + request.object;
    auto parts = s3_signed_parts{request.method, client_.host_, path, request.query, {}};
    if (!request.range.empty())
      parts.headers["range"] = request.range;
    made.credentials = client_.credentials();
    // TLS protects the body as well, and hashing it takes longer than sending it.
    const auto hash
      = client_.uses_tls_ ? std::string{s3_unsigned_payload} : sha256_of(request.body);
    if (request.is_for_absent_object)
      parts.headers["if-none-match"] = "*";
    // Without this line curl asks the server before it sends more than 1 MiB.
    auto* list = request.is_for_absent_object ? nullptr : curl_slist_append(nullptr, "Expect:");
    for (const auto& [name, value] :
         sign_s3(std::move(parts), made.credentials, client_.where_.region, hash,
                 std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now())))
      list = curl_slist_append(list, absl::StrCat(name, ": ", value).c_str());
    made.headers.reset(list);
    const auto url
      = absl::StrCat(client_.origin_, path, request.query.empty() ? "" : "?", request.query);
    auto* const easy = made.easy.get();
    const auto set
      = [easy](CURLoption option, auto value) { curl_easy_setopt(easy, option, value); };
    curl_easy_reset(easy);
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_HTTPHEADER, list);
    set(CURLOPT_USERAGENT, "hicache");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(client_.where_.connect_timeout.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, stall_seconds);
    set(CURLOPT_ERRORBUFFER, made.trouble.data());
    set(CURLOPT_BUFFERSIZE, buffer_bytes);
    set(CURLOPT_WRITEFUNCTION, &take_bytes);
    set(CURLOPT_WRITEDATA, &made);
    if (!client_.where_.tls_ca.empty())
      set(CURLOPT_CAINFO, client_.where_.tls_ca.c_str());
    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
      return;
    }
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (!has_body(request))
      return;
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_EXPECT_100_TIMEOUT_MS, continue_ms);
    set(CURLOPT_UPLOAD_BUFFERSIZE, buffer_bytes);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(total_bytes(request.body)));
    set(CURLOPT_READFUNCTION, &give_bytes);
    set(CURLOPT_READDATA, &made);
    set(CURLOPT_SEEKFUNCTION, &seek_body);
    set(CURLOPT_SEEKDATA, &made);
  }

  /// @returns whether a transfer has ended
  bool take_finished() {
    auto has_ended = false;
    auto left = 0;
    while (const auto* const message = curl_multi_info_read(session_->multi.get(), &left)) {
      if (message->msg != CURLMSG_DONE)
        continue;
      const auto code = message->data.result;
      auto ended = std::move(active_.extract(message->easy_handle).mapped());
      curl_multi_remove_handle(session_->multi.get(), ended.on_way->easy.get());
      finish(ended, code);
      session_->idle.push_back(std::move(ended.on_way->easy));
      has_ended = true;
    }
    return has_ended;
  }

  void finish(started& ended, CURLcode code) {
    auto& request = *ended.which.request;
    auto* const easy = ended.on_way->easy.get();
    const auto has_reply = code == CURLE_OK || ended.on_way->is_cut;
    auto is_worth_repeating = !has_reply && !is_about_certificates(code);
    if (has_reply) {
      request.outcome = {};
      request.status = status_of(easy);
      auto length = curl_off_t{-1};
      curl_easy_getinfo(easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
      request.length = length < 0 ? request.received : static_cast<uint64_t>(length);
      request.etag = header_of(easy, "ETag");
      request.content_range = header_of(easy, "Content-Range");
      request.bucket_region = header_of(easy, "x-amz-bucket-region");
      // Without a body, the code of a refusal is not known.
      const auto is_refused = request.status == 400 || request.status == 403;
      is_worth_repeating
        = is_transient(request) || (is_refused && client_.renew(ended.on_way->credentials));
    } else {
      const auto* const why = ended.on_way->trouble.front() != '\0' ? ended.on_way->trouble.data()
                                                                    : curl_easy_strerror(code);
      request.outcome = fail(is_about_certificates(code) ? ec::io_failure : ec::peer_unreachable,
                             absl::StrCat("S3, ", client_.description(), ": ", why));
    }
    if (!is_worth_repeating || ended.which.number == attempts_max)
      return;
    const auto most = std::min(delay_base * (1 << (ended.which.number - 1)), delay_most);
    const auto delay
      = std::uniform_int_distribution<int64_t>{0, duration{most}.count()}(session_->random);
    later_.emplace(client_.clock_.now() + duration{delay},
                   attempt{ended.which.request, ended.which.number + 1});
  }

  /// Ends what is left when the deadline has passed.
  void give_up() {
    for (auto& [easy, left] : active_) {
      curl_multi_remove_handle(session_->multi.get(), easy);
      left.which.request->outcome = fail(ec::deadline_exceeded);
    }
    for (const auto& left : ready_)
      left.request->outcome = fail(ec::deadline_exceeded);
    // What waits for another attempt keeps the reason why the last one failed.
  }

  s3_client& client_;
  std::unique_ptr<s3_client::session> session_;
  const time_point deadline_;
  std::deque<attempt> ready_;
  std::unordered_map<CURL*, started> active_;
  /// To be repeated, by the time from which on.
  std::multimap<time_point, attempt> later_;
};

// -- client -------------------------------------------------------------------

s3_client::s3_client(s3_bucket where, const clock_source& clock)
  : where_(std::move(where)), clock_(clock) {}

s3_client::~s3_client() = default;

result<std::unique_ptr<s3_client>> s3_client::open(s3_bucket where, const clock_source& clock) {
  prepare_curl();
  auto client = std::unique_ptr<s3_client>{new s3_client{std::move(where), clock}};
  HICACHE_TRY(client->parse_endpoint());
  client->credentials_ = HICACHE_TRY(load_s3_credentials(client->where_.credentials));
  HICACHE_TRY(client->ping(clock.now() + 2 * client->where_.connect_timeout));
  return client;
}

result<void> s3_client::parse_endpoint() {
  const auto endpoint = where_.endpoint.empty()
                          ? absl::StrCat("https://s3.", where_.region, ".amazonaws.com")
                          : where_.endpoint;
  const auto url = std::unique_ptr<CURLU, curl_deleter>{curl_url()};
  const auto part = [&url](CURLUPart what) {
    char* text = nullptr;
    curl_url_get(url.get(), what, &text, CURLU_NO_DEFAULT_PORT);
    const auto owner = std::unique_ptr<char, curl_deleter>{text};
    return std::string{text != nullptr ? text : ""};
  };
  const auto is_parsed = curl_url_set(url.get(), CURLUPART_URL, endpoint.c_str(), 0) == CURLUE_OK;
  const auto scheme = part(CURLUPART_SCHEME);
  const auto rest = part(CURLUPART_PATH) + part(CURLUPART_QUERY) + part(CURLUPART_USER);
  if (!is_parsed || (scheme != "http" && scheme != "https") || (!rest.empty() && rest != "/"))
    return fail(ec::invalid_argument, absl::StrCat("endpoint '", endpoint,
                                                   "': expected http://HOST[:PORT] or "
                                                   "https://HOST[:PORT]"));
  const auto port = part(CURLUPART_PORT);
  const auto server = part(CURLUPART_HOST) + (port.empty() ? "" : ":" + port);
  uses_tls_ = scheme == "https";
  host_ = where_.is_virtual_host ? absl::StrCat(where_.bucket, ".", server) : server;
  path_ = where_.is_virtual_host ? "/" : absl::StrCat("/", where_.bucket, "/");
  origin_ = absl::StrCat(scheme, "://", host_);
  description_ = absl::StrCat("bucket ", where_.bucket, " at ", scheme, "://", server);
  return {};
}

void s3_client::run(std::span<s3_request> requests, time_point deadline) {
  if (!requests.empty())
    s3_exchange{*this, requests, deadline}.run();
}

result<void> s3_client::ping(time_point deadline) {
  auto request = s3_request{"HEAD", ""};
  run({&request, 1}, deadline);
  if (!request.outcome || request.status < 300)
    return request.outcome;
  auto why = absl::StrCat("S3, ", description_, ": ");
  if (request.status == 404)
    return fail(ec::io_failure, why + "there is no such bucket");
  if (!request.bucket_region.empty() && request.bucket_region != where_.region)
    return fail(ec::io_failure, absl::StrCat(why, "the bucket is in region ", request.bucket_region,
                                             ", not in ", where_.region));
  if (request.status == 403)
    return fail(ec::io_failure, why
                                  + "refused (403); expected credentials that may list the bucket "
                                    "and get, put and delete its objects");
  return fail(ec::io_failure, absl::StrCat(why, "status ", request.status));
}

result<void> s3_client::failure_of(const s3_request& request) const {
  if (!request.outcome || request.status < 300)
    return request.outcome;
  const auto fault = parse_s3_fault(request.text);
  if (request.status == 404 && fault.code != "NoSuchBucket")
    return fail(ec::not_found);
  return fail(ec::io_failure, absl::StrCat("S3, ", description_, ": ", request.status,
                                           fault.code.empty() ? "" : " ", fault.code,
                                           fault.message.empty() ? "" : ", ", fault.message));
}

std::unique_ptr<s3_client::session> s3_client::borrow() {
  if (auto spare = idle_.take())
    return spare;
  auto made = std::make_unique<session>();
  curl_multi_setopt(made->multi.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(where_.connections));
  return made;
}

s3_credentials s3_client::credentials() {
  const auto lock = std::scoped_lock{mutex_};
  return credentials_;
}

bool s3_client::renew(const s3_credentials& rejected) {
  auto loaded = load_s3_credentials(where_.credentials);
  const auto lock = std::scoped_lock{mutex_};
  if (loaded)
    credentials_ = std::move(*loaded);
  return credentials_ != rejected;
}

} // namespace hicache
