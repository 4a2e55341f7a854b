#include "messages/tls_files.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace hicache {

namespace {

/// A key with a passphrase fails here, rather than that OpenSSL asks at the terminal.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

tl::unexpected<error> bad(const char* flag, const std::string& file, const char* expected) {
  const auto* reason = ERR_reason_error_string(ERR_peek_error());
  auto why = reason != nullptr ? std::string{reason} : "unknown";
  ERR_clear_error();
  return fail(ec::invalid_argument,
              std::string{flag} + ": '" + file + "' is not " + expected + " (" + why + ")");
}

result<void> readable(const char* flag, const std::string& file) {
  using closer = int (*)(std::FILE*);
  if (const auto opened
      = std::unique_ptr<std::FILE, closer>{std::fopen(file.c_str(), "r"), std::fclose})
    return {};
  return fail(ec::invalid_argument, std::string{flag} + ": cannot read '" + file
                                      + "': " + std::generic_category().message(errno));
}

} // namespace

result<void> tls_files::check() const {
  if (certificate.empty() && key.empty() && ca.empty())
    return {};
  if (!given())
    return fail(ec::invalid_argument,
                "--tls-cert, --tls-key and --tls-ca belong together; expected "
                "all three or none");
  for (const auto& found :
       {readable("--tls-cert", certificate), readable("--tls-key", key), readable("--tls-ca", ca)})
    if (!found)
      return found;
  const auto context
    = std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)>{SSL_CTX_new(TLS_method()), SSL_CTX_free};
  if (!context)
    return fail(ec::io_failure, "OpenSSL does not start");
  SSL_CTX_set_default_passwd_cb(context.get(), no_passphrase);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1)
    return bad("--tls-cert", certificate, "a certificate in PEM");
  if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1)
    return bad("--tls-key", key, "the certificate's key in PEM, without a passphrase");
  if (SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr) != 1)
    return bad("--tls-ca", ca, "a list of certificates in PEM");
  return {};
}

} // namespace hicache
