#pragma once

#include "backends/s3/s3_backend.hpp"
#include "tests/support/server_process.hpp"

#include <gtest/gtest.h>

#include <httplib.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

/// Real S3 servers for tests: moto, which keeps objects in memory and checks no signatures.
namespace hicache::test {

/// The moto to use: $HICACHE_MOTO_SERVER, or the one on the path.
inline std::string moto_server() {
  const auto* const chosen = std::getenv("HICACHE_MOTO_SERVER");
  return chosen != nullptr ? chosen : "moto_server";
}

inline bool has_s3_server() {
  return std::system(("command -v '" + moto_server() + "' >/dev/null 2>&1").c_str()) == 0;
}

/// A server with one bucket, "pages".
class s3_server {
public:
  s3_server() {
    // Another process may take the port first.
    for (auto i = 0; i < 10 && !process_.is_running(); ++i) {
      port_ = free_port();
      start();
    }
    EXPECT_TRUE(process_.is_running()) << moto_server() << " does not start";
    make_bucket();
  }

  /// Returns when it serves, empty, on the same port as before.
  void start() {
    process_.start({moto_server(), "-H", "127.0.0.1", "-p", std::to_string(port_)},
                   "Press CTRL+C to quit");
  }

  void make_bucket() {
    const auto made = http().Put("/pages");
    EXPECT_TRUE(made && made->status == 200) << "no bucket";
  }

  void kill() { process_.kill(); }

  /// It hangs until resume().
  void suspend() { process_.suspend(); }

  void resume() { process_.resume(); }

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// A stored object.
  std::string object(const std::string& name) {
    const auto found = http().Get("/pages/" + name);
    return found && found->status == 200 ? found->body : "";
  }

  void store(const std::string& name, const std::string& bytes) {
    const auto stored = http().Put("/pages/" + name, bytes, "application/octet-stream");
    EXPECT_TRUE(stored && stored->status == 200);
  }

  /// The list of the bucket in XML; `query` as "?uploads".
  std::string list(const std::string& query = "") {
    const auto found = http().Get("/pages" + query);
    return found && found->status == 200 ? found->body : "";
  }

private:
  /// With a signature, which moto does not check.
  httplib::Client http() const {
    auto client = httplib::Client{endpoint()};
    client.set_default_headers(
      {{"Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, "
                         "SignedHeaders=host, Signature=0"}});
    return client;
  }

  server_process process_;
  uint16_t port_ = 0;
};

/// Credentials that moto accepts, as it accepts all.
inline void set_credentials() {
  ::setenv("AWS_ACCESS_KEY_ID", "test", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "test", 1);
  ::setenv("no_proxy", "127.0.0.1", 1);
}

/// Options for a store in the bucket "pages".
inline s3_options options_for(const std::string& endpoint) {
  auto options = s3_options{};
  options.bucket.endpoint = endpoint;
  options.bucket.bucket = "pages";
  options.fingerprint = 7;
  return options;
}

} // namespace hicache::test
