#include "rpc/tls_stream.hpp"

#include "rpc/rpc_error.hpp"

#include <kj/debug.h>
#include <openssl/err.h>

#include <array>
#include <string>
#include <utility>

namespace hicache {

namespace {

/// One TLS record with overhead.
constexpr auto chunk_bytes = size_t{17} << 10;

[[noreturn]] void fail_tls(const std::string& why) {
  kj::throwFatalException(KJ_EXCEPTION(FAILED, kj::str("TLS: ", why.c_str())));
}

/// Takes the reason from OpenSSL's error queue.
std::string take_reason() {
  const auto* reason = ERR_reason_error_string(ERR_peek_last_error());
  auto text = std::string{reason != nullptr ? reason : "the connection is broken"};
  ERR_clear_error();
  return text;
}

/// OpenSSL works on memory buffers; their bytes are sent and received through `inner_`.
class tls_stream final : public kj::AsyncIoStream {
public:
  tls_stream(kj::Own<kj::AsyncIoStream> inner, tls_context context, bool is_server)
    : inner_(kj::mv(inner)), context_(std::move(context)), ssl_(SSL_new(context_.get()), SSL_free),
      in_(BIO_new(BIO_s_mem())), out_(BIO_new(BIO_s_mem())),
      sent_(kj::Promise<void>{kj::READY_NOW}.fork()) {
    KJ_REQUIRE(ssl_ != nullptr && in_ != nullptr && out_ != nullptr);
    SSL_set_bio(ssl_.get(), in_, out_);
    if (is_server)
      SSL_set_accept_state(ssl_.get());
    else
      SSL_set_connect_state(ssl_.get());
  }

  kj::Promise<void> handshake() {
    ERR_clear_error();
    const auto done = SSL_do_handshake(ssl_.get());
    const auto status = SSL_get_error(ssl_.get(), done);
    if (done == 1)
      return flush();
    if (status != SSL_ERROR_WANT_READ) {
      // The flush sends the TLS alert to the peer.
      const auto why = why_not();
      return flush().then([why] { kj::throwFatalException(kj::Exception{why}); },
                          [why](kj::Exception&&) { kj::throwFatalException(kj::Exception{why}); });
    }
    return flush().then([this] { return fill(); }).then([this](bool has_more) {
      if (!has_more)
        fail_tls("the peer hung up");
      return handshake();
    });
  }

  /// @pre the handshake is done
  peer_identity peer() const {
    auto found = identify(*SSL_get0_peer_certificate(ssl_.get()));
    KJ_REQUIRE(found.has_value(), "a role that the handshake let pass");
    return std::move(*found);
  }

  kj::Promise<size_t> tryRead(void* buffer, size_t least, size_t most) override {
    return read_on(static_cast<kj::byte*>(buffer), least, most, 0);
  }

  kj::Promise<void> write(const void* buffer, size_t size) override {
    encrypt(buffer, size);
    return flush();
  }

  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    for (const auto& piece : pieces)
      encrypt(piece.begin(), piece.size());
    return flush();
  }

  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }

  void shutdownWrite() override {
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
    sent_ = flush().then([this] { inner_->shutdownWrite(); }).fork();
  }

  void abortRead() override { inner_->abortRead(); }

  void getsockopt(int level, int option, void* value, kj::uint* length) override {
    inner_->getsockopt(level, option, value, length);
  }

  void setsockopt(int level, int option, const void* value, kj::uint length) override {
    inner_->setsockopt(level, option, value, length);
  }

private:
  /// Why the handshake failed.
  kj::Exception why_not() {
    auto reason = take_reason();
    const auto is_role = SSL_get_verify_result(ssl_.get()) == X509_V_ERR_APPLICATION_VERIFICATION;
    if (is_role && SSL_is_server(ssl_.get()) == 0)
      return to_exception(
        {ec::not_permitted, "the role in its certificate is not that of a member"});
    if (is_role)
      reason = "the role in its certificate is not known";
    return KJ_EXCEPTION(FAILED, kj::str("TLS: ", reason.c_str()));
  }

  void encrypt(const void* bytes, size_t size) {
    ERR_clear_error();
    auto written = size_t{0};
    if (size > 0 && SSL_write_ex(ssl_.get(), bytes, size, &written) != 1)
      fail_tls(take_reason());
  }

  /// Sends OpenSSL's pending output after earlier output.
  kj::Promise<void> flush() {
    if (const auto size = BIO_ctrl_pending(out_); size > 0) {
      auto bytes = kj::heapArray<kj::byte>(size);
      BIO_read(out_, bytes.begin(), static_cast<int>(size));
      sent_ = sent_.addBranch()
                .then([this, bytes = kj::mv(bytes)]() mutable {
                  auto done = inner_->write(bytes.begin(), bytes.size());
                  return done.attach(kj::mv(bytes));
                })
                .fork();
    }
    return sent_.addBranch();
  }

  /// @returns false at the end of the peer's input
  kj::Promise<bool> fill() {
    return inner_->tryRead(chunk_.data(), 1, chunk_.size()).then([this](size_t size) {
      if (size > 0)
        BIO_write(in_, chunk_.data(), static_cast<int>(size));
      return size > 0;
    });
  }

  kj::Promise<size_t> read_on(kj::byte* to, size_t least, size_t most, size_t done) {
    ERR_clear_error();
    while (done < least || done == 0) {
      auto size = size_t{0};
      if (SSL_read_ex(ssl_.get(), to + done, most - done, &size) == 1) {
        done += size;
        continue;
      }
      const auto status = SSL_get_error(ssl_.get(), 0);
      if (status == SSL_ERROR_ZERO_RETURN)
        return done;
      if (status != SSL_ERROR_WANT_READ)
        fail_tls(take_reason());
      return fill().then([=, this](bool has_more) {
        return has_more ? read_on(to, least, most, done) : kj::Promise<size_t>{done};
      });
    }
    return done;
  }

  kj::Own<kj::AsyncIoStream> inner_;
  tls_context context_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  BIO* in_;  // Owned by ssl_.
  BIO* out_; // Likewise.
  std::array<kj::byte, chunk_bytes> chunk_{};
  /// Resolves when all output is sent.
  kj::ForkedPromise<void> sent_;
};

} // namespace

kj::Promise<identified_stream> wrap_tls(kj::Own<kj::AsyncIoStream> stream,
                                        const tls_context& context, bool is_server) {
  auto wrapped = kj::heap<tls_stream>(kj::mv(stream), context, is_server);
  auto agreed = wrapped->handshake();
  return agreed.then([wrapped = kj::mv(wrapped)]() mutable {
    auto peer = wrapped->peer();
    return identified_stream{kj::mv(wrapped), std::move(peer)};
  });
}

} // namespace hicache
