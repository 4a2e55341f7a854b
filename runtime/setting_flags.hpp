#pragma once

#include "base/setting.hpp"
#include "hicache/clock.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace hicache {

/// Adds the flag of a setting that writes to `value`.
void add_flag(CLI::App& app, std::string_view name, std::string_view type,
              const setting_value& value, std::string_view meaning, const setting_range& range);

/// Adds the flag of a setting of `settings`.
template <class Settings>
void add_flag(CLI::App& app, const setting<Settings>& what, Settings& settings) {
  add_flag(app, what.name, what.type, what.at(settings), what.meaning, what.range);
}

/// Adds a flag that takes a size such as 64MiB.
void add_bytes_flag(CLI::App& app, const std::string& name, uint64_t& value,
                    const std::string& help, const setting_range& range = {});

/// Adds a flag that takes a time such as 250ms.
void add_duration_flag(CLI::App& app, const std::string& name, duration& value,
                       const std::string& help, const setting_range& range = {});

} // namespace hicache
