#include "runtime/setting.hpp"

#include "base/units.hpp"

#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <chrono>
#include <type_traits>

namespace hicache {

namespace {

template <class... Functions>
struct overloaded : Functions... {
  using Functions::operator()...;
};

template <class... Functions>
overloaded(Functions...) -> overloaded<Functions...>;

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

/// Adds a flag whose text is parsed by a function that returns the error message.
/// @param reference Of `value`.
template <class T>
void add_parsed_flag(CLI::App& app, const std::string& name, T& value,
                     const setting_value& reference, const setting_range& range,
                     const std::string& help, result<T> (*parse)(std::string_view),
                     const std::string& type, const std::string& shown_default) {
  const auto read = [name, &value, reference, range, parse](const std::string& text) {
    const auto parsed = parse(text);
    if (!parsed)
      throw CLI::ValidationError(name, parsed.error().detail);
    value = *parsed;
    if (const auto wrong = range_error(reference, range))
      throw CLI::ValidationError(name, "'" + text + "' is " + *wrong);
  };
  app.add_option_function<std::string>(name, read, help)
    ->type_name(type)
    ->default_str(shown_default);
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

void add_flag(CLI::App& app, std::string_view name, std::string_view type,
              const setting_value& value, std::string_view meaning, const setting_range& range) {
  const auto flag = "--" + std::string{name};
  const auto help = plain(meaning_of(meaning, value, range));
  std::visit(
    overloaded{
      [&](bool* x) { app.add_flag(flag, *x, help); },
      [&](size_value x) { add_bytes_flag(app, flag, *x.bytes, help, range); },
      [&](duration* x) { add_duration_flag(app, flag, *x, help, range); },
      [&](eviction_policy_ptr* x) {
        add_parsed_flag(app, flag, *x, value, range, help, make_eviction_policy, std::string{type},
                        std::string{(*x)->name()});
      },
      [&](named_value x) {
        const auto take = [flag, x](const std::string& text) {
          if (const auto taken = x.take(x.at, text); !taken)
            throw CLI::ValidationError(flag, taken.error().detail);
        };
        app.add_option_function<std::string>(flag, take, help)
          ->type_name(std::string{type})
          ->default_str(x.name(x.at));
      },
      [&](std::string* x) {
        app.add_option(flag, *x, help)->capture_default_str()->type_name(std::string{type});
      },
      [&](auto* x) {
        using number = std::remove_pointer_t<decltype(x)>;
        auto* option = app.add_option(flag, *x, help);
        option->capture_default_str()->type_name(std::string{type});
        if (range.is_given())
          option->check(
            CLI::Range(static_cast<number>(range.least), static_cast<number>(range.most)));
      }},
    value);
}

void add_bytes_flag(CLI::App& app, const std::string& name, uint64_t& value,
                    const std::string& help, const setting_range& range) {
  add_parsed_flag(app, name, value, size_value{&value}, range, help, parse_bytes, "SIZE",
                  format_bytes(value));
}

void add_duration_flag(CLI::App& app, const std::string& name, duration& value,
                       const std::string& help, const setting_range& range) {
  add_parsed_flag(app, name, value, &value, range, help, parse_duration, "TIME", text_of(value));
}

} // namespace hicache
