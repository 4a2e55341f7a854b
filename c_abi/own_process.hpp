#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace hicache {

/// Base of what a caller has a handle of: it is of no use to a process that was forked from that
/// which made it.
class own_process {
public:
  /// Whether this process made it.
  bool is_ours() const noexcept { return ::getpid() == process_; }

private:
  pid_t process_ = ::getpid();
};

} // namespace hicache
