#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// Tables of what a state machine does, as text.
namespace hicache::test {

inline std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

inline std::vector<std::string> split(const std::string& text, char at) {
  auto parts = std::vector<std::string>{};
  auto stream = std::istringstream{text};
  for (auto part = std::string{}; std::getline(stream, part, at);)
    parts.push_back(trimmed(part));
  return parts;
}

/// A state as it looks from outside.
inline std::string visible(const std::string& state) {
  return state.substr(0, state.find(':'));
}

struct expectation {
  std::string next;
  std::string actions;
};

using expectations = std::map<std::pair<std::string, std::string>, expectation>;

/// Enters a row into the list, with each choice that "?" stands for.
inline void enter(expectations& list, std::string state, std::string next, const std::string& event,
                  const std::string& actions) {
  for (const auto* flag : {" frozen?", " alone?"})
    if (const auto at = state.find(flag); at != std::string::npos) {
      const auto length = std::string{flag}.size();
      const auto in_next = next.find(flag);
      const auto chosen = [&](std::string text, size_t where, bool has) {
        if (where != std::string::npos)
          text.erase(has ? where + length - 1 : where, has ? 1 : length);
        return text;
      };
      for (const auto has : {false, true})
        enter(list, chosen(state, at, has), chosen(next, in_next, has), event, actions);
      return;
    }
  const auto [row, is_new] = list.emplace(
    std::pair{event, state}, expectation{next == "=" ? visible(state) : next, actions});
  EXPECT_TRUE(is_new) << event << " in " << state;
}

/// Reads rows "event | state; state | next state | actions". A state with "alone?" or "frozen?" is
/// two states, and so is the next one; "=" is the same state. What follows on a colon tells apart
/// states that look the same from outside.
inline expectations read_table(const std::string& table, const std::vector<std::string>& events) {
  auto list = expectations{};
  for (const auto& line : split(table, '\n')) {
    if (line.empty())
      continue;
    auto cells = split(line, '|');
    cells.resize(4);
    EXPECT_NE(std::ranges::find(events, cells[0]), events.end()) << cells[0];
    for (const auto& state : split(cells[1], ';'))
      enter(list, state, cells[2], cells[0], cells[3]);
  }
  return list;
}

} // namespace hicache::test
