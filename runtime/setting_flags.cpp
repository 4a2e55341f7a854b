#include "runtime/setting_flags.hpp"

#include "base/overloaded.hpp"
#include "base/units.hpp"

#include <type_traits>

namespace hicache {

namespace {

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
  add_parsed_flag(app, name, value, &value, range, help, parse_duration, "TIME",
                  text_of(setting_value{&value}));
}

} // namespace hicache
