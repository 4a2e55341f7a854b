#pragma once

#include "backends/s3/s3_credentials.hpp"
#include "backends/s3/s3_signature.hpp"
#include "base/spare_pool.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// A bucket, and how it is reached.
struct s3_bucket {
  /// http:// or https://, a host, and maybe a port. Empty: AWS's in the region.
  std::string endpoint;
  std::string bucket;
  std::string region = "us-east-1";
  /// The bucket is part of the host's name, not of the path.
  bool is_virtual_host = false;
  s3_credential_source credentials;
  /// Authorities (PEM) that may have signed the server's certificate; empty: the system's.
  std::string tls_ca;
  /// Requests in progress of one call.
  size_t connections = 16;
  std::chrono::milliseconds connect_timeout{5000};
};

/// A request for an object of the bucket, and its reply.
struct s3_request {
  std::string method;
  /// Of letters, digits and "-._~/"; empty for the bucket itself.
  std::string object;
  /// As s3_signed_parts::query.
  std::string query = {};
  /// Value of the header Range; empty: there is none.
  std::string range = {};
  /// A server that has the object refuses it, with status 412.
  bool is_for_absent_object = false;
  std::vector<std::span<const std::byte>> body = {};
  /// Takes the body of a reply with status 200 or 206, from byte `at` of it on; begins at 0 again
  /// when the request is repeated. False: the rest is not wanted.
  std::function<bool(uint64_t at, std::span<const std::byte>)> on_bytes = {};

  /// Why there is no reply; nothing if there is one.
  result<void> outcome = {};
  long status = 0;
  /// Bytes of the body, and how many of them on_bytes got.
  uint64_t length = 0;
  uint64_t received = 0;
  /// The body, where on_bytes does not take it, up to a limit.
  std::string text = {};
  /// Values of headers; empty if absent.
  std::string etag = {};
  std::string content_range = {};
  std::string bucket_region = {};
};

class s3_exchange;

/// Sends requests over connections that it keeps, and repeats those that failed for a reason that
/// may pass: a broken connection, a server that is too busy. Any thread.
class s3_client {
public:
  /// @param clock Must outlive the client.
  /// @returns invalid_argument, io_failure or peer_unreachable if the bucket cannot be used, with a
  /// sentence
  static result<std::unique_ptr<s3_client>> open(s3_bucket where, const clock_source& clock);

  ~s3_client();

  /// Sends requests side by side. Returns when all have a reply or have failed, at the deadline at
  /// the latest; it does not touch their memory after that.
  void run(std::span<s3_request> requests, time_point deadline);

  /// Asks for the bucket.
  result<void> ping(time_point deadline);

  /// Why a request failed: its outcome, or what the server refused; nothing if the status is below
  /// 300. not_found if there is no such object.
  result<void> failure_of(const s3_request& request) const;

  /// For messages: "bucket kv at http://127.0.0.1:9000".
  const std::string& description() const noexcept { return description_; }

private:
  friend class s3_exchange;

  struct session;

  s3_client(s3_bucket where, const clock_source& clock);

  result<void> parse_endpoint();

  std::unique_ptr<session> borrow();

  s3_credentials credentials();

  /// Reads the credentials anew.
  /// @returns whether they differ from `rejected`
  bool renew(const s3_credentials& rejected);

  const s3_bucket where_;
  const clock_source& clock_;
  std::string description_;
  bool uses_tls_ = false;
  /// "http://host:port" of the bucket, and the path before an object's name.
  std::string origin_;
  std::string host_;
  std::string path_;
  spare_pool<session> idle_;
  std::mutex mutex_; // Guards what follows.
  s3_credentials credentials_;
};

} // namespace hicache
