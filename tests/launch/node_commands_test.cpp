#include "launch/node_commands.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

node_client_state client(uint64_t number, client_traffic traffic) {
  return {number, {7, 0xabc}, 4096, 8192, 3, 1, traffic};
}

std::string line_of(const std::string& text, uint64_t number) {
  const auto begin = text.find("\n" + std::string(8 - std::to_string(number).size(), ' ')
                               + std::to_string(number) + " ");
  return begin == std::string::npos ? ""
                                    : text.substr(begin + 1, text.find('\n', begin + 1) - begin);
}

TEST(NodeActivityTest, ShowsRatesOfWhatHappenedInBetween) {
  auto before = node_status{};
  before.pages_wanted = 100;
  before.pages_found = 50;
  before.clients = {client(1, {10, 10 << 20, 100, 50, 50 << 20})};
  auto now = before;
  now.client_count = 1;
  now.pages_wanted = 140;
  now.pages_found = 80;
  now.pages_written = 4;
  now.evicted = 2;
  now.refused = 1;
  now.clients = {client(1, {14, 14 << 20, 140, 80, 80 << 20})};
  const auto text = node_activity(before, now, 2s);
  EXPECT_THAT(text, HasSubstr("each second: 15.0 of 20.0 pages found, 2.0 written, 1.0 evicted, "
                              "0.5 requests refused"));
  const auto line = line_of(text, 1);
  EXPECT_THAT(line, HasSubstr("0000000000000abc"));
  EXPECT_THAT(line, HasSubstr("2.0 MiB/s"));
  EXPECT_THAT(line, HasSubstr("15.0 MiB/s"));
  EXPECT_THAT(line, HasSubstr(" 17.0 ")) << "pages a second";
  EXPECT_THAT(line, HasSubstr(" 75.0 ")) << "percent found";
  EXPECT_THAT(line, HasSubstr("4.0 KiB"));
  EXPECT_THAT(line, HasSubstr("8.0 KiB"));
}

TEST(NodeActivityTest, AClientThatIsNewHasDoneAllOfItInBetween) {
  auto now = node_status{};
  now.clients = {client(9, {1, 1 << 20, 0, 0, 0})};
  const auto line = line_of(node_activity({}, now, 1s), 9);
  EXPECT_THAT(line, HasSubstr("1.0 MiB/s"));
  EXPECT_THAT(line, HasSubstr(" - ")) << "it wanted none";
}

TEST(NodeActivityTest, TheBusiestClientsComeFirst) {
  auto now = node_status{};
  for (auto number = uint64_t{1}; number <= 30; ++number)
    now.clients.push_back(client(number, {0, 0, 0, 0, number << 10}));
  const auto text = node_activity({}, now, 1s);
  EXPECT_LT(text.find(line_of(text, 30)), text.find(line_of(text, 29)));
  EXPECT_NE(line_of(text, 11), "");
  EXPECT_EQ(line_of(text, 10), "");
  EXPECT_THAT(text, HasSubstr("and 10 less busy ones"));
}

TEST(NodeActivityTest, WithoutClientsThereIsNoTable) {
  EXPECT_THAT(node_activity({}, {}, 1s), Not(HasSubstr("tenant")));
}

} // namespace
} // namespace hicache
