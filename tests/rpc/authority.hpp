#pragma once

// Certificates for tests, made in memory and written to files.

#include "hicache/tls_files.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

using key_ptr = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using certificate_ptr = std::unique_ptr<X509, void (*)(X509*)>;

/// An authority that signs certificates of processes.
class authority {
public:
  explicit authority(std::string name)
    : name_(std::move(name)), key_(make_key()), certificate_(make_certificate(name_, key_.get())) {}

  /// Signs a certificate and writes it, its key and the authority's own certificate into a folder.
  /// Each file replaces the one that was there as a whole.
  /// @param units Organisational units of the subject.
  tls_files sign_into(const std::string& folder, const std::vector<std::string>& units = {}) const {
    const auto key = make_key();
    const auto certificate = make_certificate("process", key.get(), units);
    const auto files
      = tls_files{folder + "/process.crt", folder + "/process.key", folder + "/ca.crt"};
    replace(files.certificate, [&](std::FILE* to) { PEM_write_X509(to, certificate.get()); });
    replace(files.key, [&](std::FILE* to) {
      PEM_write_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    replace(files.ca, [&](std::FILE* to) { PEM_write_X509(to, certificate_.get()); });
    return files;
  }

  /// Writes a file beside the one that is there, and puts it in its place.
  template <class Write>
  static void replace(const std::string& path, Write write) {
    auto* file = std::fopen((path + ".new").c_str(), "w");
    write(file);
    std::fclose(file);
    std::filesystem::rename(path + ".new", path);
  }

private:
  static key_ptr make_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

  /// Signed by this authority for an hour.
  certificate_ptr make_certificate(const std::string& subject, EVP_PKEY* key,
                                   const std::vector<std::string>& units = {}) const {
    auto made = certificate_ptr{X509_new(), X509_free};
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), key);
    add_name(X509_get_subject_name(made.get()), "CN", subject);
    for (const auto& unit : units)
      add_name(X509_get_subject_name(made.get()), "OU", unit);
    add_name(X509_get_issuer_name(made.get()), "CN", name_);
    // What is signed with its own key is the authority itself.
    const auto* constraints = key == key_.get() ? "critical,CA:TRUE" : "critical,CA:FALSE";
    auto* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, constraints);
    X509_add_ext(made.get(), extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(made.get(), key_.get(), EVP_sha256());
    return made;
  }

  static void add_name(X509_NAME* to, const char* kind, const std::string& name) {
    X509_NAME_add_entry_by_txt(to, kind, MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.data()),
                               static_cast<int>(name.size()), -1, 0);
  }

  std::string name_;
  key_ptr key_;
  certificate_ptr certificate_;
};

} // namespace hicache::test
