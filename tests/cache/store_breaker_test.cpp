#include "base/limits.hpp"
#include "cache/store/store_breaker.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;

constexpr auto usual = breaker_policy{};

/// Plays one letter after the other on a breaker, at virtual times:
/// `g` a get succeeds, `e` a look-up succeeds, `F` a get fails, `L` a get is late, `E` a look-up is
/// late, `.` a second passes, `m` a minute passes. Writes down what became of each call: `x` for
/// one that was refused, `p` for a probe, `c` for any other; and at the end the state.
std::string play(const std::string& script) {
  auto breaker = store_breaker{};
  auto now = time_point{} + 1h;
  auto seen = std::string{};
  for (const auto letter : script) {
    if (letter == '.' || letter == 'm') {
      now += letter == 'm' ? 60s : 1s;
      continue;
    }
    const auto call = letter == 'e' || letter == 'E' ? store_call::exists : store_call::get;
    const auto pass = breaker.admit(now);
    seen += !pass ? 'x' : pass->is_probe ? 'p' : 'c';
    if (!pass)
      continue;
    if (letter == 'g' || letter == 'e')
      breaker.succeeded(call, *pass, now);
    else
      breaker.failed(call, *pass, letter == 'F' ? breaker_cause::failing : breaker_cause::late,
                     now);
  }
  return seen + ' ' + to_string(breaker.state()) + ' ' + to_string(breaker.cause());
}

struct breaker_case {
  const char* name;
  std::string script;
  std::string expected;
};

class StoreBreakerTest : public testing::TestWithParam<breaker_case> {};

TEST_P(StoreBreakerTest, DecidesAsTheTableSays) {
  EXPECT_EQ(play(GetParam().script), GetParam().expected);
}

std::string times(size_t count, const std::string& part) {
  auto whole = std::string{};
  for (auto i = size_t{0}; i < count; ++i)
    whole += part;
  return whole;
}

INSTANTIATE_TEST_SUITE_P(
  Cases, StoreBreakerTest,
  testing::Values(
    breaker_case{"AStoreThatWorksIsUsed", "ggeg", "cccc closed none"},
    breaker_case{"TwoFailuresAreChance", "FFgFF", "ccccc closed none"},
    breaker_case{"ThreeFailuresInARowOpen", "FFFgg", "cccxx open failing"},
    breaker_case{"SuccessesOfAnotherKindHideNothing", "eLeLeLg", "ccccccx open late"},
    breaker_case{"LatenessIsToldAsSuch", "LLLg", "cccx open late"},
    breaker_case{"AThirdFailsForever", times(40, "Fgg"), times(120, "c") + " closed none"},
    breaker_case{"HalfOfAWindowFails", times(16, "FFgg") + "g",
                 times(33, "c") + times(32, "x") + " open failing"},
    breaker_case{"ItIsTriedAfterAPause", "FFF....g.g", "cccxp closed none"},
    breaker_case{"AProbeThatFailsDoublesThePause", "FFF.....F.........g.g", "cccpxp closed none"},
    breaker_case{"ThePauseIsBounded", "FFF" + times(8, "mF") + "mg",
                 "ccc" + times(9, "p") + " closed none"},
    breaker_case{"ThePauseIsShortAgainAfterSuccess", "FFF.....F..........gFFF.....g",
                 "cccppcccp closed none"},
    breaker_case{"AnotherKindOfCallClosesNothing", "LLL.....eeg", "cccppp closed none"},
    breaker_case{"AnotherKindMayFailToo", "LLL.....eE.....e..........e", "cccppxp closed none"}),
  [](const auto& chosen) { return chosen.param.name; });

TEST(StoreBreaker, OneProbeAtATime) {
  auto breaker = store_breaker{};
  const auto start = time_point{} + 1h;
  for (auto i = 0u; i < usual.failures; ++i)
    breaker.failed(store_call::get, *breaker.admit(start), breaker_cause::failing, start);
  const auto later = start + usual.pause_min;
  const auto probe = breaker.admit(later);
  ASSERT_TRUE(probe && probe->is_probe);
  EXPECT_FALSE(breaker.admit(later));
  breaker.succeeded(store_call::get, *probe, later);
  EXPECT_TRUE(breaker.admit(later));
  EXPECT_EQ(breaker.since(), later);
  EXPECT_EQ(breaker.openings(), 1u);
}

TEST(StoreBreaker, OutcomesOfCallsFromBeforeItOpenedAreIgnored) {
  auto breaker = store_breaker{};
  const auto start = time_point{} + 1h;
  const auto old = *breaker.admit(start);
  for (auto i = 0u; i < usual.failures; ++i)
    breaker.failed(store_call::get, *breaker.admit(start), breaker_cause::failing, start);
  breaker.succeeded(store_call::get, old, start);
  EXPECT_EQ(breaker.state(), breaker_state::open);
  const auto later = start + usual.pause_min;
  const auto probe = breaker.admit(later);
  breaker.failed(store_call::get, old, breaker_cause::late, later);
  EXPECT_EQ(breaker.state(), breaker_state::half_open);
  breaker.succeeded(store_call::get, *probe, later);
  EXPECT_EQ(breaker.state(), breaker_state::closed);
}

TEST(StoreBreaker, TooManyStuckCallsKeepItOpenUntilOneReturns) {
  auto breaker = store_breaker{};
  const auto start = time_point{} + 1h;
  breaker.set_stuck(limits::stuck_calls - 1, start);
  EXPECT_TRUE(breaker.admit(start));
  breaker.set_stuck(limits::stuck_calls, start);
  EXPECT_EQ(breaker.state(), breaker_state::open);
  EXPECT_EQ(breaker.cause(), breaker_cause::stuck);
  EXPECT_FALSE(breaker.admit(start + 1h));
  breaker.set_stuck(limits::stuck_calls - 1, start + 1h);
  const auto probe = breaker.admit(start + 1h);
  ASSERT_TRUE(probe && probe->is_probe);
}

TEST(StoreBreaker, FailuresAndPausesAreThoseOfItsPolicy) {
  auto breaker = store_breaker{{.failures = 2, .pause_min = 2s, .pause_max = 3s}};
  auto now = time_point{} + 1h;
  const auto fail = [&] {
    const auto pass = breaker.admit(now);
    ASSERT_TRUE(pass);
    breaker.failed(store_call::get, *pass, breaker_cause::failing, now);
  };
  fail();
  EXPECT_EQ(breaker.state(), breaker_state::closed);
  fail();
  EXPECT_EQ(breaker.state(), breaker_state::open);
  for (const auto pause : {2s, 3s, 3s}) {
    EXPECT_FALSE(breaker.admit(now + pause - 1ms));
    now += pause;
    fail();
  }
}

} // namespace
} // namespace hicache
