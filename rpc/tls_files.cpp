#include "hicache/tls_files.hpp"

#include "base/system_message.hpp"
#include "base/try.hpp"
#include "rpc/tls.hpp"

#include <cerrno>
#include <cstdio>
#include <memory>

namespace hicache {

namespace {

result<void> readable(const char* flag, const std::string& file) {
  using closer = int (*)(std::FILE*);
  if (const auto opened
      = std::unique_ptr<std::FILE, closer>{std::fopen(file.c_str(), "r"), std::fclose})
    return {};
  return fail(ec::invalid_argument,
              std::string{flag} + ": cannot read '" + file + "': " + system_message(errno));
}

} // namespace

result<void> tls_files::check() const {
  if (certificate.empty() && key.empty() && ca.empty())
    return {};
  if (!given())
    return fail(ec::invalid_argument,
                "--tls-cert, --tls-key and --tls-ca belong together; expected "
                "all three or none");
  HICACHE_TRY(readable("--tls-cert", certificate));
  HICACHE_TRY(readable("--tls-key", key));
  HICACHE_TRY(readable("--tls-ca", ca));
  HICACHE_TRY(load_tls(*this));
  return {};
}

} // namespace hicache
