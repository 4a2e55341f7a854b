#include "c_abi/guarded.hpp"

#include <array>

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
  return report(code, find_own(code)->sentence, to);
}

int32_t refuse(const char* what, hc_error* to) noexcept {
  return report(HC_INVALID_ARGUMENT, what, to);
}

} // namespace hicache
