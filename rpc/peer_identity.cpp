#include "rpc/peer_identity.hpp"

#include "base/try.hpp"
#include "rpc/tls.hpp"

#include <openssl/bio.h>

#include <algorithm>
#include <memory>
#include <string_view>

namespace hicache {

namespace {

constexpr auto prefix = std::string_view{"hicache:"};

/// Maximum length of a subject; the rest is cut.
constexpr auto subject_max = size_t{200};

std::string subject_of(const X509_NAME* name) {
  const auto text = std::unique_ptr<BIO, decltype(&BIO_free)>{BIO_new(BIO_s_mem()), BIO_free};
  X509_NAME_print_ex(text.get(), name, 0, XN_FLAG_ONELINE & ~XN_FLAG_SPC_EQ);
  auto* bytes = static_cast<char*>(nullptr);
  const auto size = BIO_get_mem_data(text.get(), &bytes);
  return std::string{bytes, std::min(subject_max, static_cast<size_t>(std::max(size, 0L)))};
}

/// In UTF-8; empty if not convertible.
std::string text_of(const X509_NAME_ENTRY* entry) {
  auto* bytes = static_cast<unsigned char*>(nullptr);
  const auto size = ASN1_STRING_to_UTF8(&bytes, X509_NAME_ENTRY_get_data(entry));
  if (size < 0)
    return {};
  auto text = std::string{reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
  OPENSSL_free(bytes);
  return text;
}

} // namespace

const char* role_of(const peer_rights& rights) noexcept {
  if (rights.as_member)
    return rights.as_operator ? "any" : "member";
  return rights.as_operator ? "operator" : "reader";
}

result<peer_identity> identify(const X509& certificate) {
  const auto* name = X509_get_subject_name(&certificate);
  auto named = peer_rights{false, false};
  auto has_role = false;
  for (auto at = X509_NAME_get_index_by_NID(name, NID_organizationalUnitName, -1); at >= 0;
       at = X509_NAME_get_index_by_NID(name, NID_organizationalUnitName, at)) {
    const auto unit = text_of(X509_NAME_get_entry(name, at));
    if (!unit.starts_with(prefix))
      continue;
    has_role = true;
    const auto role = std::string_view{unit}.substr(prefix.size());
    if (role == "member")
      named.as_member = true;
    else if (role == "operator")
      named.as_operator = true;
    else if (role != "reader")
      return fail(ec::not_permitted, "it has a role that is none of hicache:member, "
                                     "hicache:reader and hicache:operator");
  }
  return peer_identity{subject_of(name), has_role ? named : peer_rights{}};
}

result<void> check_own_role(const tls_files& files, const std::string& what) {
  if (!files.given())
    return {};
  const auto context = HICACHE_TRY(load_tls(files));
  const auto own = identify(*SSL_CTX_get0_certificate(context.get()));
  if (!own || own->rights.as_member)
    return {};
  return fail(ec::invalid_argument, "--tls-cert: the role of '" + files.certificate + "' is "
                                      + role_of(own->rights) + ", and " + what
                                      + " takes that of a member");
}

} // namespace hicache
