#pragma once

#include "base/setting.hpp"

#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

/// The tables of docs/configuration.md that come from settings.
namespace hicache::test {

inline std::string table_cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}});
}

inline std::string code_cell(const std::string& text) {
  return text.empty() ? "" : "`" + table_cell(text) + "`";
}

/// `--name TYPE`.
template <class Settings>
std::string flag_cell(const setting<Settings>& what) {
  return code_cell("--" + std::string{what.name}
                   + (what.type.empty() ? "" : " " + std::string{what.type}));
}

template <class Settings>
std::string default_cell(const setting<Settings>& what) {
  auto defaults = Settings{};
  return code_cell(shown(what.at(defaults)));
}

template <class Settings>
std::string meaning_cell(const setting<Settings>& what) {
  auto defaults = Settings{};
  return table_cell(meaning_of(what.meaning, what.at(defaults), what.range));
}

/// Compares a table with what docs/configuration.md has between two comments. With
/// HICACHE_WRITE_DOCS in the environment it is written there.
inline void expect_documented(const std::string& what, const std::string& table) {
  auto text = std::string{};
  {
    auto file = std::ifstream{HICACHE_CONFIGURATION_PAGE};
    text.assign(std::istreambuf_iterator<char>{file}, {});
  }
  const auto marker = "<!-- " + what + " -->\n";
  const auto begin = text.find(marker);
  ASSERT_NE(begin, std::string::npos) << marker;
  const auto first = begin + marker.size();
  const auto end = text.find("<!-- end -->", first);
  ASSERT_NE(end, std::string::npos);
  if (std::getenv("HICACHE_WRITE_DOCS") != nullptr)
    std::ofstream{HICACHE_CONFIGURATION_PAGE} << text.replace(first, end - first, table);
  else
    EXPECT_EQ(text.substr(first, end - first), table)
      << "docs/configuration.md is not up to date: run this with HICACHE_WRITE_DOCS=1";
}

} // namespace hicache::test
