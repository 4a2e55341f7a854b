#include "backends/s3/s3_backend.hpp"

#include "backends/headed_object.hpp"
#include "backends/s3/s3_replies.hpp"
#include "backends/written_objects.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <absl/strings/str_cat.h>

#include <curl/curl.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache {

namespace {

using byte_parts = std::vector<std::span<const std::byte>>;

/// What 1000 names, the most that a server lists at once, take and more.
constexpr auto listing_bytes_max = size_t{8} << 20;

/// A header, and the bytes of its object.
struct stored_object {
  size_t page = 0;
  encoded_page_header header{};
  byte_parts bytes;
  uint64_t length = 0;
  /// This process has written it before.
  bool is_known = false;
};

/// An object on its way in parts.
struct multipart_upload {
  const stored_object* object = nullptr;
  /// Percent-encoded.
  std::string id;
  /// Its parts' requests.
  size_t first = 0;
  size_t count = 0;
  result<void> outcome;
};

byte_parts bytes_of(const std::string& text) {
  return {std::as_bytes(std::span{text})};
}

std::string percent_encoded(const std::string& text) {
  auto* const encoded = curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size()));
  auto copy = std::string{encoded};
  curl_free(encoded);
  return copy;
}

class s3_backend final : public blocking_store {
public:
  s3_backend(s3_options options, std::unique_ptr<s3_client> client, const clock_source& clock)
    : options_(std::move(options)), client_(std::move(client)), clock_(clock),
      own_(options_.max_bytes) {}

  std::string name() const override { return "s3"; }

  store_capabilities capabilities() const override {
    return {.survives_restarts = true,
            .is_shared = true,
            .tells_occupancy = own_.is_bounded(),
            .preferred_batch = 2 * options_.bucket.connections};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<bool>{};
    for (const auto& request : ask_each("HEAD", keys, deadline))
      answers.push_back(request.outcome && request.status == 200);
    return answers;
  }

  bool tells_lengths() const override { return true; }

  std::vector<result<uint64_t>> read(std::span<const page_read> pages, part_lengths rule,
                                     time_point deadline) override {
    auto objects = std::vector<headed_object_reader>{};
    objects.reserve(pages.size());
    auto requests = std::vector<s3_request>{};
    auto firsts = std::vector<size_t>{};
    for (const auto& page : pages) {
      auto& object = objects.emplace_back(page, options_.fingerprint, rule);
      firsts.push_back(requests.size());
      add_reads(page.key, object, requests);
    }
    firsts.push_back(requests.size());
    client_->run(requests, deadline);
    auto answers = std::vector<result<uint64_t>>{};
    auto broken = std::vector<page_key>{};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      answers.push_back(
        outcome_of(objects[i], std::span{requests}.subspan(firsts[i], firsts[i + 1] - firsts[i])));
      if (!answers.back() && answers.back().error().code == ec::corrupt_page
          && !options_.keeps_broken)
        broken.push_back(pages[i].key);
    }
    remove_all(broken, deadline);
    own_.count_reads(pages, answers);
    return answers;
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return own_.count_writes(pages.size(), clock_.now() >= deadline,
                             [&](auto& answers) { write(pages, answers, deadline); });
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    return remove_all(keys, deadline);
  }

  bool watch_evictions(storage_backend::eviction_watch watch, bool) override {
    return own_.watch_evictions(std::move(watch));
  }

  result<object_list> list(const std::string& from, time_point deadline) override {
    auto request = s3_request{"GET", ""};
    if (!from.empty())
      request.query = "continuation-token=" + percent_encoded(from) + "&";
    request.query += "list-type=2&prefix=" + percent_encoded(options_.key_prefix);
    auto body = std::string{};
    request.on_bytes = [&body](uint64_t at, std::span<const std::byte> bytes) {
      body.resize(at);
      body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return body.size() <= listing_bytes_max;
    };
    client_->run({&request, 1}, deadline);
    HICACHE_TRY(client_->failure_of(request));
    auto listing = parse_s3_listing(body);
    if (!listing)
      return fail(ec::io_failure, client_->description() + " answered without a list");
    auto listed = object_list{{}, std::move(listing->next)};
    for (const auto& [name, bytes] : listing->objects)
      if (const auto key = parse_page_key(
            std::string_view{name}.substr(std::min(options_.key_prefix.size(), name.size())));
          key && bytes >= page_header_bytes)
        listed.objects.push_back({*key, {}, bytes - page_header_bytes});
    return listed;
  }

  backend_health health() override {
    const auto answer = client_->ping(clock_.now() + options_.bucket.connect_timeout);
    auto health = backend_health{};
    health.ok = answer.has_value();
    health.detail = answer ? client_->description() : answer.error().detail;
    own_.tell(health);
    return health;
  }

private:
  s3_request request_for(std::string method, const page_key& key) const {
    return {std::move(method), options_.key_prefix + to_string(key)};
  }

  std::vector<s3_request> ask_each(const std::string& method, std::span<const page_key> keys,
                                   time_point deadline) {
    auto requests = std::vector<s3_request>{};
    for (const auto& key : keys)
      requests.push_back(request_for(method, key));
    client_->run(requests, deadline);
    return requests;
  }

  // -- get --------------------------------------------------------------------

  /// One request, or one for each part of a long object.
  void add_reads(const page_key& key, headed_object_reader& object,
                 std::vector<s3_request>& requests) const {
    const auto capacity = object.capacity();
    for (auto first = uint64_t{0}; first < capacity; first += options_.part_bytes) {
      auto& request = requests.emplace_back(request_for("GET", key));
      if (capacity > options_.part_bytes)
        request.range
          = absl::StrCat("bytes=", first, "-", std::min(first + options_.part_bytes, capacity) - 1);
      request.on_bytes = [&object, first](uint64_t at, std::span<const std::byte> bytes) {
        return object.take(first + at, bytes);
      };
    }
  }

  result<uint64_t> outcome_of(const headed_object_reader& object,
                              std::span<const s3_request> requests) const {
    if (requests.front().outcome && requests.front().status == 416)
      return object.outcome(0); // Not even a first byte.
    HICACHE_TRY(client_->failure_of(requests.front()));
    if (requests.size() == 1)
      return object.outcome(requests.front().length);
    const auto whole = parse_content_range(requests.front().content_range);
    if (!whole)
      return fail(ec::io_failure, client_->description() + " does not serve ranges");
    for (auto i = size_t{0}; i < requests.size(); ++i) {
      const auto first = i * options_.part_bytes;
      if (first >= whole->total)
        break; // The parts are longer than the object, and this request was refused (416).
      HICACHE_TRY(client_->failure_of(requests[i]));
      const auto served = parse_content_range(requests[i].content_range);
      const auto expected
        = std::min(options_.part_bytes, std::min(whole->total, object.capacity()) - first);
      if (!served || served->first != first || served->total != whole->total
          || requests[i].received != expected)
        return fail(ec::io_failure, "the object changed while it was read");
    }
    return object.outcome(whole->total);
  }

  // -- set --------------------------------------------------------------------

  void write(std::span<const page_write> pages, std::vector<result<void>>& answers,
             time_point deadline) {
    auto objects = std::vector<stored_object>{};
    auto evicted = std::vector<page_key>{};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      auto object = object_of(i, pages[i]);
      object.is_known = own_.use(pages[i].key);
      if (!object.is_known) {
        auto [has_room, removed] = own_.begin_write(pages[i], object.length);
        for (const auto& gone : removed)
          evicted.push_back(gone.key);
        answers[i] = has_room;
        if (!has_room)
          continue;
      }
      objects.push_back(std::move(object));
    }
    ask_each("DELETE", evicted, deadline);
    own_.tell_evicted(evicted);
    const auto found = upload(pages, objects, answers, deadline);
    auto undone = std::vector<page_key>{};
    for (const auto& object : objects) {
      const auto& key = pages[object.page].key;
      // What others wrote is not counted.
      const auto is_ours = answers[object.page] && !found[object.page];
      if (!object.is_known && !own_.end_write(key, is_ours))
        undone.push_back(key);
    }
    ask_each("DELETE", undone, deadline);
  }

  stored_object object_of(size_t number, const page_write& page) const {
    return {number, header_of(page, options_.fingerprint.value()), page.parts,
            page_header_bytes + total_bytes(page.parts), false};
  }

  /// Stores short objects by a request each, and long ones in parts.
  /// @returns by page, whether the server had the object
  std::vector<bool> upload(std::span<const page_write> pages,
                           std::span<const stored_object> objects,
                           std::vector<result<void>>& answers, time_point deadline) {
    auto found = std::vector<bool>(pages.size(), false);
    auto long_ones = begin_uploads(pages, objects, answers, found, deadline);
    auto requests = std::vector<s3_request>{};
    auto short_ones = std::vector<size_t>{};
    for (const auto& object : objects) {
      if (is_long(object))
        continue;
      short_ones.push_back(object.page);
      auto& request = requests.emplace_back(request_for("PUT", pages[object.page].key));
      request.body = part_of_object(object, 0, object.length);
      request.is_for_absent_object = true;
    }
    for (auto& each : long_ones)
      add_parts(pages, each, requests);
    client_->run(requests, deadline);
    for (auto i = size_t{0}; i < short_ones.size(); ++i) {
      const auto page = short_ones[i];
      found[page] = requests[i].outcome && requests[i].status == 412;
      answers[page] = found[page] ? result<void>{} : client_->failure_of(requests[i]);
    }
    end_uploads(pages, long_ones, requests, deadline);
    for (const auto& each : long_ones)
      answers[each.object->page] = each.outcome;
    return found;
  }

  bool is_long(const stored_object& object) const { return object.length > options_.part_bytes; }

  static byte_parts part_of_object(const stored_object& object, uint64_t first, uint64_t length) {
    auto all = byte_parts{object.header};
    all.insert(all.end(), object.bytes.begin(), object.bytes.end());
    return part_of<const std::byte>(all, first, length);
  }

  /// Begins those that the server lacks: it cannot refuse an upload before its parts are there.
  std::vector<multipart_upload> begin_uploads(std::span<const page_write> pages,
                                              std::span<const stored_object> objects,
                                              std::vector<result<void>>& answers,
                                              std::vector<bool>& found, time_point deadline) {
    auto wanted = std::vector<const stored_object*>{};
    auto requests = std::vector<s3_request>{};
    for (const auto& object : objects)
      if (is_long(object)) {
        wanted.push_back(&object);
        requests.push_back(request_for("HEAD", pages[object.page].key));
      }
    client_->run(requests, deadline);
    for (auto i = size_t{0}; i < wanted.size(); ++i) {
      const auto page = wanted[i]->page;
      answers[page] = client_->failure_of(requests[i]);
      found[page] = answers[page].has_value();
    }
    std::erase_if(wanted, [&](const auto* x) {
      return found[x->page] || answers[x->page].error().code != ec::not_found;
    });
    auto uploads = std::vector<multipart_upload>{};
    requests.clear();
    for (const auto* object : wanted) {
      uploads.emplace_back().object = object;
      requests.push_back(request_for("POST", pages[object->page].key));
      requests.back().query = "uploads=";
    }
    client_->run(requests, deadline);
    for (auto i = size_t{0}; i < uploads.size(); ++i) {
      uploads[i].outcome = client_->failure_of(requests[i]);
      if (!uploads[i].outcome)
        continue;
      if (const auto id = parse_upload_id(requests[i].text))
        uploads[i].id = percent_encoded(*id);
      else
        uploads[i].outcome
          = fail(ec::io_failure, client_->description() + " answered without an upload");
    }
    return uploads;
  }

  void add_parts(std::span<const page_write> pages, multipart_upload& upload,
                 std::vector<s3_request>& requests) const {
    upload.first = requests.size();
    if (!upload.outcome)
      return;
    const auto& object = *upload.object;
    for (auto first = uint64_t{0}; first < object.length; first += options_.part_bytes) {
      auto& request = requests.emplace_back(request_for("PUT", pages[object.page].key));
      request.query = absl::StrCat("partNumber=", ++upload.count, "&uploadId=", upload.id);
      request.body
        = part_of_object(object, first, std::min(options_.part_bytes, object.length - first));
    }
  }

  /// Puts the parts together. An upload that failed is taken back.
  void end_uploads(std::span<const page_write> pages, std::span<multipart_upload> uploads,
                   std::span<const s3_request> parts, time_point deadline) {
    auto requests = std::vector<s3_request>{};
    auto lists = std::vector<std::string>(uploads.size());
    for (auto i = size_t{0}; i < uploads.size(); ++i) {
      auto& upload = uploads[i];
      if (upload.id.empty())
        continue;
      auto etags = std::vector<std::string>{};
      for (const auto& part : parts.subspan(upload.first, upload.count)) {
        if (auto failed = client_->failure_of(part); upload.outcome && !failed)
          upload.outcome = failed;
        etags.push_back(part.etag);
      }
      auto& request = requests.emplace_back(
        request_for(upload.outcome ? "POST" : "DELETE", pages[upload.object->page].key));
      request.query = "uploadId=" + upload.id;
      if (!upload.outcome)
        continue;
      lists[i] = completion_of(etags);
      request.body = bytes_of(lists[i]);
    }
    client_->run(requests, deadline);
    for (auto next = requests.begin(); auto& upload : uploads) {
      if (upload.id.empty())
        continue;
      const auto& request = *next++;
      if (!upload.outcome)
        continue;
      upload.outcome = client_->failure_of(request);
      if (upload.outcome && !is_completed_upload(request.text))
        upload.outcome = fail(ec::io_failure, client_->description() + " did not end an upload: "
                                                + parse_s3_fault(request.text).code);
    }
  }

  // -- remove -----------------------------------------------------------------

  std::vector<result<void>> remove_all(std::span<const page_key> keys, time_point deadline) {
    auto answers = std::vector<result<void>>{};
    for (auto i = size_t{0}; const auto& request : ask_each("DELETE", keys, deadline)) {
      const auto& key = keys[i++];
      answers.push_back(client_->failure_of(request));
      if (!answers.back() && answers.back().error().code == ec::not_found)
        answers.back() = {};
      if (answers.back())
        own_.remove(key);
    }
    return answers;
  }

  const s3_options options_;
  const std::unique_ptr<s3_client> client_;
  const clock_source& clock_;
  written_objects own_;
};

result<void> check(const s3_options& options) {
  const auto& where = options.bucket;
  const auto is_in_bucket = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  if (where.bucket.size() < 3 || where.bucket.size() > 63
      || !std::ranges::all_of(where.bucket, is_in_bucket))
    return fail(ec::invalid_argument,
                "bucket '" + where.bucket
                  + "': expected 3 to 63 lower-case letters, digits, hyphens and dots");
  const auto is_in_key = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
           || std::string_view{"-._~/"}.find(c) != std::string_view::npos;
  };
  if (options.key_prefix.size() > 128 || options.key_prefix.starts_with('/')
      || !std::ranges::all_of(options.key_prefix, is_in_key))
    return fail(ec::invalid_argument,
                "key_prefix '" + options.key_prefix
                  + "': expected at most 128 letters, digits and -._~/, without / at the start");
  if (where.region.empty() || !std::ranges::all_of(where.region, is_in_bucket))
    return fail(ec::invalid_argument,
                "region '" + where.region + "': expected a name such as eu-west-1");
  if (options.part_bytes < s3_part_min || options.part_bytes > s3_part_max)
    return fail(ec::invalid_argument, "part_bytes is " + format_bytes(options.part_bytes)
                                        + "; expected " + format_bytes(s3_part_min) + " to "
                                        + format_bytes(s3_part_max));
  if (where.connections == 0)
    return fail(ec::invalid_argument, "connections is 0; expected at least 1");
  return {};
}

} // namespace

result<std::unique_ptr<blocking_store>> make_s3_backend(s3_options options,
                                                        const clock_source& clock) {
  HICACHE_TRY(check(options));
  auto client = HICACHE_TRY(s3_client::open(options.bucket, clock));
  return std::make_unique<s3_backend>(std::move(options), std::move(client), clock);
}

} // namespace hicache
