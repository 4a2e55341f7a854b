// What NIXL's headers need of its own nixl_log.h, without the version of Abseil that that one asks
// for.
#ifndef HICACHE_CLIENTS_NIXL_COMMON_NIXL_LOG_H
#define HICACHE_CLIENTS_NIXL_COMMON_NIXL_LOG_H

#include <cassert>
#include <iostream>
#include <sstream>

namespace hicache::nixl {

/// A line on standard error, written at the end of the statement.
class log_line {
public:
  log_line() = default;
  log_line(const log_line&) = delete;
  log_line& operator=(const log_line&) = delete;
  ~log_line() { std::cerr << "hicache: " + text_.str() + "\n"; }

  template <class T>
  log_line& operator<<(const T& what) {
    text_ << what;
    return *this;
  }

private:
  std::ostringstream text_;
};

} // namespace hicache::nixl

#define NIXL_ERROR                                                                                 \
  ::hicache::nixl::log_line {}
#define NIXL_ASSERT(condition) assert(condition)

#endif
