#include "launch/router/upstream_call.hpp"

#include "base/check.hpp"
#include "runtime/http_listener.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace hicache {

namespace {

/// How often deadlines are looked at while nothing happens.
constexpr auto wait_max = std::chrono::milliseconds{500};

/// Deletes by a function of curl.
template <auto Free>
struct freed_by {
  void operator()(auto* handle) const noexcept { Free(handle); }
};

long milliseconds(duration time) {
  return std::max<long>(1, std::chrono::ceil<std::chrono::milliseconds>(time).count());
}

class curl_call final : public upstream_call {
public:
  explicit curl_call(upstream_request request)
    : request_(std::move(request)), easy_(curl_easy_init()), multi_(curl_multi_init()) {
    HICACHE_CHECK(easy_ && multi_);
    for (const auto& line : request_.headers)
      add_header(line.c_str());
    const auto url = "http://" + request_.address + request_.path;
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http");
    set(CURLOPT_PROXY, "");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(request_.connect_time));
    set(CURLOPT_TIMEOUT_MS, milliseconds(request_.whole_time));
    set(CURLOPT_ERRORBUFFER, trouble_.data());
    set(CURLOPT_WRITEFUNCTION, &take_bytes);
    set(CURLOPT_WRITEDATA, this);
    if (!request_.body.empty()) {
      // Without this line curl asks the instance before it sends more than 1 MiB.
      add_header("Expect:");
      add_header("Content-Type: application/json");
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
      set(CURLOPT_POSTFIELDS, request_.body.data());
    }
    set(CURLOPT_HTTPHEADER, headers_.get());
    curl_multi_add_handle(multi_.get(), easy_.get());
  }

  ~curl_call() override { curl_multi_remove_handle(multi_.get(), easy_.get()); }

  std::string read() override {
    while (state_ == upstream_state::running && received_.empty()) {
      auto running = 0;
      curl_multi_perform(multi_.get(), &running);
      if (running == 0)
        note_end();
      else if (received_.empty())
        wait();
    }
    return std::exchange(received_, {});
  }

  upstream_state state() const override { return state_; }

  std::string trouble() const override { return trouble_.data(); }

  int status() const override {
    auto status = 0L;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }

  std::string header(const char* name) const override {
    curl_header* found = nullptr;
    return curl_easy_header(easy_.get(), name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK
             ? found->value
             : "";
  }

private:
  template <class T>
  void set(CURLoption option, T value) {
    curl_easy_setopt(easy_.get(), option, value);
  }

  void add_header(const char* line) {
    auto* const longer = curl_slist_append(headers_.get(), line);
    HICACHE_CHECK(longer != nullptr);
    static_cast<void>(headers_.release());
    headers_.reset(longer);
  }

  static size_t take_bytes(char* data, size_t, size_t count, void* user) {
    static_cast<curl_call*>(user)->received_.append(data, count);
    return count;
  }

  void wait() {
    auto client = curl_waitfd{request_.client, CURL_WAIT_POLLIN, 0};
    const auto has_client = request_.client >= 0 ? 1u : 0u;
    curl_multi_poll(multi_.get(), &client, has_client, static_cast<int>(wait_max.count()), nullptr);
    // A client says nothing before its answer, except that it goes.
    if (has_client == 0 || client.revents == 0)
      return;
    if (has_hung_up(request_.client))
      state_ = upstream_state::abandoned;
    else
      request_.client = -1; // Bytes of its next request.
  }

  void note_end() {
    auto left = 0;
    const auto* const message = curl_multi_info_read(multi_.get(), &left);
    HICACHE_CHECK(message != nullptr);
    const auto code = message->data.result;
    if (code == CURLE_OK)
      state_ = upstream_state::complete;
    else if (code == CURLE_OPERATION_TIMEDOUT && has_connected())
      state_ = upstream_state::late;
    else
      state_ = upstream_state::failed;
    if (code != CURLE_OK && trouble_[0] == '\0')
      std::string{curl_easy_strerror(code)}.copy(trouble_.data(), trouble_.size() - 1);
  }

  /// Otherwise it was the time to connect that ran out.
  bool has_connected() const {
    auto micros = curl_off_t{0};
    curl_easy_getinfo(easy_.get(), CURLINFO_CONNECT_TIME_T, &micros);
    return micros > 0;
  }

  upstream_request request_;
  std::unique_ptr<curl_slist, freed_by<curl_slist_free_all>> headers_;
  std::array<char, CURL_ERROR_SIZE> trouble_{};
  std::string received_;
  upstream_state state_ = upstream_state::running;
  std::unique_ptr<CURL, freed_by<curl_easy_cleanup>> easy_;
  std::unique_ptr<CURLM, freed_by<curl_multi_cleanup>> multi_;
};

} // namespace

std::unique_ptr<upstream_call> upstream_call::start(upstream_request request) {
  static const auto prepared = curl_global_init(CURL_GLOBAL_DEFAULT);
  static_cast<void>(prepared);
  return std::make_unique<curl_call>(std::move(request));
}

} // namespace hicache
