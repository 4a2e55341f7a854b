// stores_bench STORE PLACE ACTION OBJECT_BYTES SECONDS
//
// Moves objects to or from one store and prints the bytes per second, and the slowest hundredth of
// batches, as JSON. STORE and PLACE: disk FOLDER, file FOLDER, redis HOST:PORT, s3 ENDPOINT,
// mooncake HOST:PORT of a master, nixl FOLDER; and curl ENDPOINT, libcurl's multi interface alone
// on the objects that s3 has stored. $HICACHE_STORE_PYTHON runs the store hosts. ACTION: read,
// random, write, or mixed, which reads while another thread writes and prints the figures of the
// reads. The bucket is "bench"; credentials come from the environment.

#include "backends/disk/disk_backend.hpp"
#include "backends/external/external_backend.hpp"
#include "backends/file_backend.hpp"
#include "backends/headed_object.hpp"
#include "backends/redis/redis_backend.hpp"
#include "backends/s3/s3_backend.hpp"
#include "backends/storage_queue.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace hicache;

constexpr auto no_deadline = time_point::max();
constexpr auto batch_bytes = size_t{8} << 20;
/// Batches under way at once.
constexpr auto depth = size_t{2};
/// Of all batches together, and of curl alone.
constexpr auto connections = size_t{16};

const monotonic_clock the_clock;

[[noreturn]] void give_up(const std::string& sentence) {
  std::fprintf(stderr, "stores_bench: %s\n", sentence.c_str());
  std::exit(1);
}

template <class T>
T value_of(result<T> x) {
  if (!x)
    give_up(x.error().detail);
  return std::move(*x);
}

struct plan {
  std::string store;
  std::string place;
  std::string action;
  size_t object_bytes = 0;
  double seconds = 0;

  /// Enough for all connections to a bucket.
  size_t batch_objects() const {
    const auto has_bucket = store == "s3" || store == "curl";
    return std::max(has_bucket ? connections / depth : size_t{1}, batch_bytes / object_bytes);
  }

  /// Of the objects that are read.
  size_t total_bytes() const {
    return store == "disk" || store == "file" ? size_t{1} << 29
           : store == "redis"                 ? size_t{256} << 20
                                              : size_t{64} << 20;
  }

  size_t objects() const { return std::max(total_bytes() / object_bytes, depth * batch_objects()); }
};

s3_options options_of(const plan& wanted) {
  auto options = s3_options{};
  options.bucket.endpoint = wanted.place;
  options.bucket.bucket = "bench";
  options.bucket.connections = connections / depth;
  return options;
}

external_options host_of(const plan& wanted) {
  const auto is_nixl = wanted.store == "nixl";
  const auto* const python = std::getenv("HICACHE_STORE_PYTHON");
  return {.command
          = "exec " + std::string{python != nullptr ? python : "python3"}
            + " -m hicache store-host --fd 3 "
            + (is_nixl ? "hicache.nixl_store:NixlStore" : "hicache.mooncake_store:MooncakeStore"),
          .options = is_nixl ? R"({"path": ")" + wanted.place + "\"}"
                             : R"({"global_segment_size": 0, "master_server_address": ")"
                                 + wanted.place + "\"}"};
}

std::unique_ptr<storage_backend> open(const plan& wanted) {
  if (wanted.store == "disk")
    return std::make_unique<storage_queue>(
      value_of(make_disk_backend(wanted.place, uint64_t{4} << 30, 0, the_clock)), depth);
  if (wanted.store == "file")
    return std::make_unique<storage_queue>(
      value_of(make_file_backend({{wanted.place}, 7}, the_clock)), depth);
  if (wanted.store == "redis") {
    auto options = redis_options{};
    options.servers.servers = value_of(rpc::parse_endpoints(wanted.place));
    return std::make_unique<storage_queue>(value_of(make_redis_backend(options, the_clock)), 1);
  }
  if (wanted.store == "s3")
    return std::make_unique<storage_queue>(value_of(make_s3_backend(options_of(wanted), the_clock)),
                                           depth);
  if (wanted.store == "mooncake" || wanted.store == "nixl")
    return std::make_unique<storage_queue>(
      value_of(make_external_backend(host_of(wanted), the_clock)), depth);
  give_up("there is no store '" + wanted.store + "'");
}

/// Keys of objects of several sizes, which a server may hold at once, differ.
page_key key_of(const plan& wanted, uint64_t number) {
  auto random = std::mt19937_64{number * 31 + wanted.object_bytes};
  auto key = page_key{};
  for (auto& byte : key.bytes)
    byte = static_cast<uint8_t>(random());
  return key;
}

/// Bytes moved, and how long each batch took.
struct figures {
  uint64_t bytes = 0;
  std::vector<double> batch_seconds;
};

/// Batches of one store, `depth` of them under way.
class mover {
public:
  mover(storage_backend& store, const plan& wanted)
    : store_(store), wanted_(wanted), memory_(depth * batch_bytes_of(wanted)) {
    auto random = std::mt19937_64{1};
    for (auto at = size_t{0}; at + 8 <= memory_.size(); at += 8) {
      const auto word = random();
      std::memcpy(memory_.data() + at, &word, 8);
    }
  }

  /// Moves objects until `is_over`.
  template <class Next, class IsOver>
  figures run(bool is_read, Next next, IsOver is_over) {
    auto told = figures{};
    auto under_way = std::deque<batch>{};
    for (auto slot = size_t{0}; !is_over(); slot = (slot + 1) % depth) {
      if (under_way.size() == depth) {
        finish(under_way.front(), told);
        under_way.pop_front();
      }
      under_way.push_back(begin(is_read, slot, next));
    }
    for (auto& each : under_way)
      finish(each, told);
    return told;
  }

private:
  struct batch {
    std::chrono::steady_clock::time_point begun;
    std::shared_ptr<std::promise<std::vector<result<void>>>> done;
  };

  static size_t batch_bytes_of(const plan& wanted) {
    return wanted.batch_objects() * wanted.object_bytes;
  }

  template <class Next>
  batch begin(bool is_read, size_t slot, Next& next) {
    auto made = batch{std::chrono::steady_clock::now(),
                      std::make_shared<std::promise<std::vector<result<void>>>>()};
    const auto part = [&](size_t i) {
      return std::span{memory_}.subspan(slot * batch_bytes_of(wanted_) + i * wanted_.object_bytes,
                                        wanted_.object_bytes);
    };
    auto done = [promise = made.done](auto answer) { promise->set_value(std::move(answer)); };
    if (is_read) {
      auto reads = std::vector<page_read>{};
      for (auto i = size_t{0}; i < wanted_.batch_objects(); ++i)
        reads.push_back({key_of(wanted_, next()), {part(i)}});
      store_.read(std::move(reads), no_deadline, std::move(done), {});
    } else {
      auto writes = std::vector<page_write>{};
      for (auto i = size_t{0}; i < wanted_.batch_objects(); ++i)
        writes.push_back({key_of(wanted_, next()), {}, {part(i)}});
      store_.write(std::move(writes), no_deadline, std::move(done));
    }
    return made;
  }

  void finish(batch& ended, figures& told) {
    for (const auto& outcome : ended.done->get_future().get())
      if (!outcome)
        give_up("an object failed: " + to_string(outcome.error()));
    told.bytes += batch_bytes_of(wanted_);
    told.batch_seconds.push_back(
      std::chrono::duration<double>{std::chrono::steady_clock::now() - ended.begun}.count());
  }

  storage_backend& store_;
  const plan& wanted_;
  std::vector<std::byte> memory_;
};

/// The requests of curl alone, from a GET or PUT that is finished to the next one.
class bare_curl {
public:
  explicit bare_curl(const plan& wanted) : wanted_(wanted), body_(wanted.object_bytes, 'x') {
    // A server that checks signatures cannot be measured.
    headers_ = curl_slist_append(
      headers_, "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/"
                "aws4_request, SignedHeaders=host, Signature=0");
    headers_ = curl_slist_append(headers_, "Expect:");
  }

  template <class Next, class IsOver>
  figures run(bool is_read, Next next, IsOver is_over) {
    auto told = figures{};
    auto* const multi = curl_multi_init();
    for (auto i = size_t{0}; i < connections; ++i)
      start(multi, curl_easy_init(), is_read, next());
    for (auto left = connections; left > 0;) {
      auto running = 0;
      curl_multi_perform(multi, &running);
      auto queued = 0;
      auto has_ended = false;
      while (const auto* const message = curl_multi_info_read(multi, &queued)) {
        auto* const easy = message->easy_handle;
        auto status = 0L;
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
        if (message->data.result != CURLE_OK || status != 200)
          give_up("curl failed with status " + std::to_string(status));
        curl_multi_remove_handle(multi, easy);
        told.bytes += wanted_.object_bytes;
        has_ended = true;
        if (is_over()) {
          curl_easy_cleanup(easy);
          --left;
        } else {
          start(multi, easy, is_read, next());
        }
      }
      if (!has_ended)
        curl_multi_poll(multi, nullptr, 0, 1000, nullptr);
    }
    curl_multi_cleanup(multi);
    return told;
  }

private:
  struct cursor {
    std::string_view left;
  };

  static size_t drop(char*, size_t, size_t count, void*) { return count; }

  static size_t give(char* target, size_t, size_t room, void* user) {
    auto& left = static_cast<cursor*>(user)->left;
    const auto count = std::min(room, left.size());
    std::copy_n(left.data(), count, target);
    left.remove_prefix(count);
    return count;
  }

  void start(CURLM* multi, CURL* easy, bool is_read, size_t number) {
    const auto name = s3_options{}.key_prefix + to_string(key_of(wanted_, number));
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, (wanted_.place + "/bench/" + name).c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &drop);
    if (!is_read) {
      auto& at = cursors_[easy];
      at = {body_};
      curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
      curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
      curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(body_.size()));
      curl_easy_setopt(easy, CURLOPT_READFUNCTION, &give);
      curl_easy_setopt(easy, CURLOPT_READDATA, &at);
    }
    curl_multi_add_handle(multi, easy);
  }

  const plan& wanted_;
  const std::string body_;
  curl_slist* headers_ = nullptr;
  std::map<CURL*, cursor> cursors_;
};

void print(const figures& told, double seconds) {
  auto sorted = told.batch_seconds;
  std::ranges::sort(sorted);
  const auto p99 = sorted.empty() ? 0 : sorted[(sorted.size() - 1) * 99 / 100];
  std::printf("{\"bytes_per_s\": %.0f, \"p99_s\": %.6f}\n",
              static_cast<double>(told.bytes) / seconds, p99);
}

int run(const plan& wanted) {
  const auto is_read = wanted.action != "write";
  auto order = std::vector<size_t>(wanted.objects());
  std::iota(order.begin(), order.end(), size_t{0});
  auto number = size_t{0};
  const auto ascending = [&number] { return number++; };
  auto store = std::unique_ptr<storage_backend>{};
  auto objects = std::unique_ptr<mover>{};
  if (wanted.store != "curl") {
    store = open(wanted);
    objects = std::make_unique<mover>(*store, wanted);
    if (is_read)
      objects->run(false, ascending, [&] { return number >= order.size(); });
  }
  if (wanted.action == "random")
    std::ranges::shuffle(order, std::mt19937_64{7});
  auto next = size_t{0};
  const auto in_order = [&] { return order[next++ % order.size()]; };
  // Objects that no run has written.
  auto written
    = std::atomic<uint64_t>{(uint64_t{1} << 62) + (uint64_t{std::random_device{}()} << 20)};
  const auto anew = [&] { return written++; };
  const auto begun = std::chrono::steady_clock::now();
  const auto until = begun + std::chrono::duration<double>{wanted.seconds};
  const auto is_over = [&] { return std::chrono::steady_clock::now() >= until; };
  auto writer = std::thread{};
  if (wanted.action == "mixed")
    writer = std::thread{[&] { mover{*store, wanted}.run(false, anew, is_over); }};
  auto told = figures{};
  if (wanted.store == "curl")
    told = is_read ? bare_curl{wanted}.run(true, in_order, is_over)
                   : bare_curl{wanted}.run(false, anew, is_over);
  else
    told = is_read ? objects->run(true, in_order, is_over) : objects->run(false, anew, is_over);
  const auto seconds
    = std::chrono::duration<double>{std::chrono::steady_clock::now() - begun}.count();
  if (writer.joinable())
    writer.join();
  print(told, seconds);
  return 0;
}

} // namespace

int main(int count, char** arguments) {
  const auto words = std::vector<std::string>{arguments + 1, arguments + count};
  if (words.size() != 5) {
    std::fprintf(stderr, "stores_bench STORE PLACE ACTION OBJECT_BYTES SECONDS\n");
    return 2;
  }
  return run({words[0], words[1], words[2], std::stoul(words[3]), std::stod(words[4])});
}
