// Refusals, repetitions and odd replies, by a double.

#include "backends/s3/s3_backend.hpp"
#include "backends/s3/s3_client.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/s3/s3_server.hpp"
#include "tests/backends/s3/scripted_s3.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

class S3ClientTest : public testing::Test {
protected:
  S3ClientTest() { set_credentials(); }

  void serve(scripted_s3::script answer) {
    client_.reset(); // Its connections would keep the old server's threads.
    server_.emplace(std::move(answer));
    auto client = s3_client::open(options_for(server_->endpoint()).bucket, clock_);
    ASSERT_TRUE(client) << client.error().detail;
    client_ = std::move(*client);
  }

  s3_request ask(s3_request request, std::chrono::milliseconds time = 30s) {
    client_->run({&request, 1}, clock_.now() + time);
    return request;
  }

  std::string trouble_with(const s3_request& request) {
    const auto failed = client_->failure_of(request);
    return failed ? "" : failed.error().detail;
  }

  monotonic_clock clock_;
  std::optional<scripted_s3> server_;
  std::unique_ptr<s3_client> client_;
};

TEST_F(S3ClientTest, RepeatsWhatABusyServerRefused) {
  for (const auto status : {409, 429, 500, 502, 503, 504}) {
    auto times = 0;
    serve([&times, status](const auto&, auto& response) {
      response.status = ++times < 3 ? status : 200;
      response.set_content(times < 3 ? "busy" : "done", "text/plain");
    });
    auto body = std::string{};
    auto request = s3_request{"GET", "x"};
    request.on_bytes = [&body](uint64_t at, std::span<const std::byte> bytes) {
      body.resize(at);
      body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return true;
    };
    const auto answered = ask(request);
    EXPECT_TRUE(client_->failure_of(answered)) << status;
    EXPECT_EQ(body, "done");
    EXPECT_EQ(server_->seen().size(), 3u);
  }
}

TEST_F(S3ClientTest, SendsTheWholeBodyAgain) {
  auto bodies = std::vector<std::string>{};
  serve([&bodies](const auto& request, auto& response) {
    bodies.push_back(request.body);
    response.status = bodies.size() < 2 ? 503 : 200;
  });
  const auto text = std::string(3 << 20, 'x') + "end";
  auto put = s3_request{"PUT", "x"};
  const auto bytes = std::as_bytes(std::span{text});
  put.body = {bytes.first(1000), {}, bytes.subspan(1000)};
  EXPECT_TRUE(client_->failure_of(ask(put)));
  EXPECT_TRUE(bodies == (std::vector{text, text}));
}

TEST_F(S3ClientTest, GivesUpAfterFiveAttempts) {
  serve([](const auto&, auto& response) {
    response.status = 503;
    response.set_content("<Error><Code>SlowDown</Code><Message>Later</Message></Error>",
                         "application/xml");
  });
  EXPECT_EQ(trouble_with(ask({"GET", "x"})),
            "S3, bucket pages at " + server_->endpoint() + ": 503 SlowDown, Later");
  EXPECT_EQ(server_->seen().size(), 5u);
}

TEST_F(S3ClientTest, DoesNotRepeatARefusal) {
  serve([](const auto&, auto& response) {
    response.status = 403;
    response.set_content("<Error><Code>AccessDenied</Code></Error>", "application/xml");
  });
  EXPECT_EQ(trouble_with(ask({"GET", "x"})),
            "S3, bucket pages at " + server_->endpoint() + ": 403 AccessDenied");
  EXPECT_EQ(server_->seen().size(), 1u);
}

TEST_F(S3ClientTest, TellsAnAbsentObjectFromAnAbsentBucket) {
  auto code = std::string{"NoSuchKey"};
  serve([&code](const auto&, auto& response) {
    response.status = 404;
    response.set_content("<Error><Code>" + code + "</Code></Error>", "application/xml");
  });
  EXPECT_EQ(code_of(client_->failure_of(ask({"GET", "x"}))), ec::not_found);
  code = "NoSuchBucket";
  EXPECT_EQ(code_of(client_->failure_of(ask({"GET", "x"}))), ec::io_failure);
}

TEST_F(S3ClientTest, ReadsCredentialsAgainWhenTheyExpire) {
  const auto folder = temporary_folder{};
  const auto file = folder.path() + "/credentials";
  const auto write = [&file](const std::string& key) {
    std::ofstream{file} << "[default]\naws_access_key_id = " << key
                        << "\naws_secret_access_key = S\n";
  };
  write("old");
  server_.emplace([](const auto& request, auto& response) {
    const auto is_new
      = request.get_header_value("authorization").find("Credential=new/") != std::string::npos;
    response.status = is_new ? 200 : 403;
  });
  auto bucket = options_for(server_->endpoint()).bucket;
  bucket.credentials.file = file;
  client_ = std::move(s3_client::open(bucket, clock_).value());
  EXPECT_EQ(ask({"HEAD", "x"}).status, 403);
  EXPECT_EQ(server_->seen().size(), 1u) << "the file has not changed";
  write("new");
  EXPECT_EQ(ask({"HEAD", "x"}).status, 200);
  EXPECT_EQ(ask({"HEAD", "x"}).status, 200);
  EXPECT_EQ(server_->seen().size(), 4u);
}

TEST_F(S3ClientTest, RequestsOfACallGoSideBySide) {
  const auto expected = s3_bucket{}.connections;
  auto mutex = std::mutex{};
  auto changed = std::condition_variable{};
  auto in_progress = size_t{0};
  auto met = false;
  // Each waits for the others.
  serve([&](const auto&, auto&) {
    auto lock = std::unique_lock{mutex};
    met = ++in_progress == expected || met;
    changed.notify_all();
    changed.wait_for(lock, 10s, [&met] { return met; });
    --in_progress;
  });
  auto requests = std::vector<s3_request>(expected, s3_request{"GET", "x"});
  client_->run(requests, clock_.now() + 60s);
  for (const auto& request : requests)
    EXPECT_EQ(request.status, 200);
  const auto lock = std::scoped_lock{mutex};
  EXPECT_TRUE(met);
}

TEST_F(S3ClientTest, AServerThatStandsStillCostsNoMoreThanTheDeadline) {
  auto gate = std::mutex{};
  serve([&gate](const auto&, auto&) { const auto wait = std::scoped_lock{gate}; });
  {
    const auto closed = std::scoped_lock{gate};
    EXPECT_EQ(code_of(ask({"GET", "x"}, 100ms).outcome), ec::deadline_exceeded);
  }
  EXPECT_EQ(ask({"GET", "x"}).status, 200);
}

TEST_F(S3ClientTest, ABucketInAnotherRegionIsNamed) {
  auto other = httplib::Server{};
  other.Get(".*", [](const auto&, auto& response) {
    response.status = 301;
    response.set_header("x-amz-bucket-region", "eu-west-1");
  });
  const auto port = other.bind_to_any_port("127.0.0.1");
  auto thread = std::thread{[&other] { other.listen_after_bind(); }};
  const auto endpoint = "http://127.0.0.1:" + std::to_string(port);
  const auto client = s3_client::open(options_for(endpoint).bucket, clock_);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().detail, "S3, bucket pages at " + endpoint
                                     + ": the bucket is in region eu-west-1, not in us-east-1");
  other.stop();
  thread.join();
}

TEST_F(S3ClientTest, AskingAServerWhetherItHasAnObjectCostsNoRequest) {
  server_.emplace([](const httplib::Request& request, httplib::Response& response) {
    if (request.get_header_value("If-None-Match") == "*")
      response.status = 412;
  });
  const auto store = std::move(make_s3_backend(options_for(server_->endpoint()), clock_).value());
  EXPECT_TRUE(put(*store, key_of(1), bytes_of(1, 1000)));
  EXPECT_EQ(server_->seen().size(), 1u);
}

TEST_F(S3ClientTest, AnUploadThatFailsAtItsEndIsAFailure) {
  server_.emplace([](const httplib::Request& request, httplib::Response& response) {
    if (request.method == "HEAD")
      response.status = 404;
    else if (request.has_param("uploads"))
      response.set_content("<InitiateMultipartUploadResult><UploadId>a+b</UploadId>"
                           "</InitiateMultipartUploadResult>",
                           "application/xml");
    else if (request.method == "POST")
      response.set_content("<Error><Code>InternalError</Code></Error>", "application/xml");
    else
      response.set_header("ETag", "\"x\"");
  });
  auto options = options_for(server_->endpoint());
  options.part_bytes = s3_part_min;
  const auto store = std::move(make_s3_backend(options, clock_).value());
  const auto failed = put(*store, key_of(1), bytes_of(1, s3_part_min));
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().detail.find("did not end an upload: InternalError"), std::string::npos);
  const auto seen = server_->seen();
  EXPECT_EQ(std::ranges::count(seen, "PUT", &httplib::Request::method), 2);
  for (const auto& request : seen)
    if (request.method == "PUT") {
      EXPECT_EQ(request.get_param_value("uploadId"), "a+b") << "the id is percent-encoded";
    }
}

TEST_F(S3ClientTest, APartThatFailsTakesTheUploadBack) {
  server_.emplace([](const httplib::Request& request, httplib::Response& response) {
    if (request.method == "HEAD")
      response.status = 404;
    else if (request.has_param("uploads"))
      response.set_content("<InitiateMultipartUploadResult><UploadId>1</UploadId>"
                           "</InitiateMultipartUploadResult>",
                           "application/xml");
    else if (request.method == "PUT" && request.get_param_value("partNumber") == "2")
      response.status = 403;
  });
  auto options = options_for(server_->endpoint());
  options.part_bytes = s3_part_min;
  const auto store = std::move(make_s3_backend(options, clock_).value());
  EXPECT_EQ(code_of(put(*store, key_of(1), bytes_of(1, s3_part_min))), ec::io_failure);
  const auto seen = server_->seen();
  EXPECT_EQ(seen.back().method, "DELETE");
  EXPECT_EQ(seen.back().get_param_value("uploadId"), "1");
}

TEST_F(S3ClientTest, AServerWithoutRangesIsNotBelieved) {
  server_.emplace([](const httplib::Request&, httplib::Response& response) {
    response.set_content(std::string(100, 'x'), "application/octet-stream");
    response.status = 200;
  });
  auto options = options_for(server_->endpoint());
  options.part_bytes = s3_part_min;
  const auto store = std::move(make_s3_backend(options, clock_).value());
  EXPECT_FALSE(take(*store, key_of(1), 2 * s3_part_min));
}

} // namespace
} // namespace hicache::test
