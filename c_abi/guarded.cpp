#include "c_abi/guarded.hpp"

#include <array>
#include <string_view>

namespace hicache {

namespace {

constexpr auto own_codes = std::array{
  own_code{HC_FORKED, "forked", "the client belongs to the process that this one was forked from"},
  own_code{HC_OUT_OF_MEMORY, "out_of_memory", "there is no memory left"},
  own_code{HC_INTERNAL, "internal", "a mistake in hicache"},
};

} // namespace

const own_code* find_own(int32_t code) noexcept {
  const auto* at = std::ranges::find(own_codes, code, &own_code::code);
  return at == own_codes.end() ? nullptr : at;
}

int32_t report_own(int32_t code, hc_error* to) noexcept {
  report({ec::none, {}}, to);
  if (to == nullptr)
    return code;
  const auto text = std::string_view{find_own(code)->sentence};
  std::memset(to->text, 0, sizeof(to->text));
  std::ranges::copy(text, to->text);
  return to->code = code;
}

int32_t refuse(const char* what, hc_error* to) noexcept {
  const auto code = report({ec::invalid_argument, {}}, to);
  if (to != nullptr)
    std::strncpy(to->text, what, sizeof(to->text) - 1);
  return code;
}

} // namespace hicache
