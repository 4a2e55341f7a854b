#include "rpc/tls.hpp"

#include "rpc/peer_identity.hpp"

#include <openssl/err.h>
#include <spdlog/spdlog.h>

#include <sys/stat.h>

#include <utility>

namespace hicache {

namespace {

tl::unexpected<error> bad(const char* flag, const std::string& file, const char* expected) {
  const auto* reason = ERR_reason_error_string(ERR_peek_error());
  auto why = reason != nullptr ? std::string{reason} : "unknown";
  ERR_clear_error();
  return fail(ec::invalid_argument,
              std::string{flag} + ": '" + file + "' is not " + expected + " (" + why + ")");
}

SSL* connection_of(X509_STORE_CTX* at) {
  return static_cast<SSL*>(X509_STORE_CTX_get_ex_data(at, SSL_get_ex_data_X509_STORE_CTX_idx()));
}

/// Makes OpenSSL reject certificates that the authority signed but whose role is not allowed.
template <class Allows>
int check_peer(int is_signed, X509_STORE_CTX* at, Allows allows) {
  if (is_signed != 1 || X509_STORE_CTX_get_error_depth(at) != 0)
    return is_signed;
  const auto peer = identify(*X509_STORE_CTX_get_current_cert(at));
  if (peer && allows(*connection_of(at), peer->rights))
    return 1;
  X509_STORE_CTX_set_error(at, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

int check_peer_of_cluster(int is_signed, X509_STORE_CTX* at) {
  return check_peer(is_signed, at, [](const SSL& connection, const peer_rights& rights) {
    return SSL_is_server(&connection) == 1 || rights.as_member;
  });
}

int check_rank(int is_signed, X509_STORE_CTX* at) {
  return check_peer(is_signed, at, [](const SSL& connection, const peer_rights& rights) {
    const auto own = identify(*SSL_get_certificate(&connection));
    return own && own->rights == rights;
  });
}

} // namespace

result<tls_context> load_tls(const tls_files& files, tls_peers peers) {
  const auto context = tls_context{SSL_CTX_new(TLS_method()), SSL_CTX_free};
  if (!context)
    return fail(ec::io_failure, "OpenSSL does not start");
  // Makes keys with a passphrase fail; otherwise OpenSSL would prompt on the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1)
    return bad("--tls-cert", files.certificate, "a certificate in PEM");
  if (const auto own = identify(*SSL_CTX_get0_certificate(context.get())); !own)
    return fail(ec::invalid_argument,
                "--tls-cert: '" + files.certificate + "' is of no use: " + own.error().detail);
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return bad("--tls-key", files.key, "the certificate's key in PEM, without a passphrase");
  if (SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) != 1)
    return bad("--tls-ca", files.ca, "a list of certificates in PEM");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     peers == tls_peers::ranks ? check_rank : check_peer_of_cluster);
  // Connections are long-lived; no session resumption.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  return context;
}

result<tls_context> tls_source::get() {
  const auto now = look();
  if (context_ && now == seen_)
    return context_;
  auto loaded = load_tls(files_);
  seen_ = now;
  if (loaded) {
    if (context_)
      spdlog::info("the TLS files are new; connections from now on use them");
    context_ = std::move(*loaded);
    return context_;
  }
  if (!context_)
    return loaded;
  spdlog::error("{}; connections go on with what was there before", loaded.error().detail);
  return context_;
}

tls_source::stamp tls_source::look() const {
  auto stamps = stamp{};
  auto next = stamps.begin();
  for (const auto* file : {&files_.certificate, &files_.key, &files_.ca}) {
    struct stat found {};
    stat(file->c_str(), &found);
    for (const auto value :
         {static_cast<uint64_t>(found.st_ino), static_cast<uint64_t>(found.st_size),
          static_cast<uint64_t>(found.st_mtim.tv_sec),
          static_cast<uint64_t>(found.st_mtim.tv_nsec)})
      *next++ = value;
  }
  return stamps;
}

} // namespace hicache
