#include "base/setting.hpp"

#include "base/overloaded.hpp"
#include "base/units.hpp"

#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <chrono>

namespace hicache {

namespace {

std::string text_of(duration value) {
  const auto is_long = value > std::chrono::hours{24};
  return is_long
           ? absl::StrFormat("%gh", std::chrono::duration<double, std::ratio<3600>>(value).count())
           : absl::StrFormat("%gs", std::chrono::duration<double>(value).count());
}

/// A bound of a range, written like the value.
std::string bound_of(const setting_value& value, double bound) {
  return std::visit(
    overloaded{[&](const size_value&) { return format_bytes(static_cast<uint64_t>(bound)); },
               [&](const duration*) {
                 return text_of(
                   std::chrono::duration_cast<duration>(std::chrono::duration<double>(bound)));
               },
               [&](const double*) { return absl::StrFormat("%.12g", bound); },
               [](const named_value&) { return std::string{}; },
               [&](const auto*) { return absl::StrFormat("%.0f", bound); }},
    value);
}

/// The range in words; empty if there is none.
std::string words_of(const setting_value& value, const setting_range& range) {
  if (!range.is_given())
    return {};
  if (range.most < no_end)
    return bound_of(value, range.least) + " to " + bound_of(value, range.most);
  return range.least > 0 ? "at least " + bound_of(value, range.least) : "";
}

/// What the range bounds; nothing for values without order.
std::optional<double> number_of(const setting_value& value) {
  return std::visit(
    overloaded{
      [](const bool*) { return std::optional<double>{}; },
      [](const size_value& x) { return std::optional{static_cast<double>(*x.bytes)}; },
      [](const duration* x) { return std::optional{std::chrono::duration<double>(*x).count()}; },
      [](const named_value&) { return std::optional<double>{}; },
      [](const auto* x) {
        if constexpr (requires { static_cast<double>(*x); })
          return std::optional{static_cast<double>(*x)};
        else
          return std::optional<double>{};
      }},
    value);
}

} // namespace

std::string text_of(const setting_value& value) {
  return std::visit(
    overloaded{[](const bool* x) { return std::string{*x ? "true" : "false"}; },
               [](const double* x) { return absl::StrFormat("%g", *x); },
               [](const size_value& x) { return std::to_string(*x.bytes); },
               [](const duration* x) { return text_of(*x); },
               [](const std::string* x) { return *x; },
               [](const named_value& x) { return x.name(x.at); },
               [](const eviction_policy_ptr* x) { return std::string{(*x)->name()}; },
               [](const auto* x) { return std::to_string(*x); }},
    value);
}

std::string shown(const setting_value& value) {
  if (const auto* size = std::get_if<size_value>(&value); size != nullptr && *size->bytes != 0)
    return format_bytes(*size->bytes);
  if (const auto* is_on = std::get_if<bool*>(&value))
    return **is_on ? "on" : "off";
  return text_of(value);
}

std::string meaning_of(std::string_view meaning, const setting_value& value,
                       const setting_range& range) {
  const auto words = words_of(value, range);
  return std::string{meaning} + (words.empty() ? "" : "; " + words);
}

std::optional<std::string> range_error(const setting_value& value, const setting_range& range) {
  const auto number = number_of(value);
  if (!number || range.has(*number))
    return std::nullopt;
  return "out of range; expected " + words_of(value, range);
}

std::string plain(std::string_view markdown) {
  auto text = std::string{};
  for (auto rest = markdown; !rest.empty();) {
    const auto begin = rest.find('[');
    const auto middle = rest.find("](", begin);
    const auto end = rest.find(')', middle);
    // Keep brackets that are not links, as in [,…].
    if (end == std::string_view::npos || rest.find(']', begin) != middle) {
      const auto upto = begin == std::string_view::npos ? rest.size() : begin + 1;
      text += rest.substr(0, upto);
      rest.remove_prefix(upto);
      continue;
    }
    text += rest.substr(0, begin);
    text += rest.substr(begin + 1, middle - begin - 1);
    rest.remove_prefix(end + 1);
  }
  return absl::StrReplaceAll(text, {{"`", ""}});
}

} // namespace hicache
