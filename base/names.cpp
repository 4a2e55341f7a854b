#include "base/names.hpp"

namespace hicache {

std::string alternatives(std::span<const std::string_view> names) {
  auto text = std::string{};
  for (auto i = size_t{0}; i < names.size(); ++i)
    text.append(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ").append(names[i]);
  return text;
}

tl::unexpected<error> unknown_name(std::span<const std::string_view> names, std::string_view name,
                                   std::string_view kind) {
  return fail(ec::invalid_argument, "'" + std::string{name} + "' is not " + std::string{kind}
                                      + "; expected " + alternatives(names));
}

} // namespace hicache
