#include "runtime/network_flags.hpp"

#include <unistd.h>

#include <array>

namespace hicache {

void add_index_flag(CLI::App& app, std::string& index) {
  app.add_option("--index", index, "the cluster's index")
    ->type_name(index_place_type)
    ->capture_default_str();
}

void add_tls_flags(CLI::App& app, tls_files& tls) {
  app
    .add_option("--tls-cert", tls.certificate,
                "this process's certificate in PEM; with it, the key and the CA, every connection "
                "to the index is one of TLS")
    ->type_name("FILE");
  app.add_option("--tls-key", tls.key, "the certificate's key in PEM, without a passphrase")
    ->type_name("FILE");
  app
    .add_option("--tls-ca", tls.ca,
                "certificates in PEM of the authority that signs those of the cluster's processes")
    ->type_name("FILE");
}

bool is_loopback(const std::string& host) noexcept {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string machine_name() {
  auto name = std::array<char, 256>{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

result<void> check_listening(const std::string& flag, const std::string& host, const tls_files& tls,
                             bool insecure) {
  if (insecure || tls.given() || is_loopback(host) || host.starts_with("unix:"))
    return {};
  return fail(ec::invalid_argument,
              flag + ": other machines reach '" + host
                + "'; expected --tls-cert, --tls-key and --tls-ca, or --insecure to let everyone "
                  "there read and change what is cached");
}

} // namespace hicache
