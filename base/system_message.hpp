#pragma once

#include <string>
#include <system_error>

namespace hicache {

/// What an errno value means: "No such file or directory".
inline std::string system_message(int number) {
  return std::generic_category().message(number);
}

} // namespace hicache
