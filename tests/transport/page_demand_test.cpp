#include "base/limits.hpp"
#include "tests/support/manual_clock.hpp"
#include "transport/page_demand.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

class PageDemandTest : public testing::Test {
protected:
  span_state ask_as(uint64_t reader, uint64_t offset, uint32_t flags = page_span::exports) {
    return demand.admit(reader, {0, offset, 100, flags}, clock.now());
  }

  /// A reader that has not asked before.
  span_state ask(uint64_t offset, uint32_t flags = page_span::exports) {
    return ask_as(next_reader++, offset, flags);
  }

  /// Asks until the page is not sent any more.
  void use_up(uint64_t offset) {
    for (auto i = 0u; i < limits::demand_serves; ++i)
      ask(offset);
    ASSERT_EQ(ask(offset), span_state::refused);
  }

  test::manual_clock clock;
  page_demand demand;
  uint64_t next_reader = 100;
};

TEST_F(PageDemandTest, TheFirstReaderNeedNotOfferAPageTheOthersShall) {
  EXPECT_EQ(ask(0), span_state::sent);
  EXPECT_EQ(ask(0), span_state::in_demand);
  EXPECT_EQ(ask(0), span_state::in_demand);
}

TEST_F(PageDemandTest, APageIsSentAFewTimes) {
  use_up(0);
  EXPECT_EQ(ask(0), span_state::refused);
  EXPECT_EQ(ask(0, 0), span_state::refused);
}

TEST_F(PageDemandTest, OneReaderMakesNoDemandHoweverOftenItReads) {
  for (auto i = 0u; i < 2 * limits::demand_serves; ++i)
    EXPECT_EQ(ask_as(1, 0), span_state::sent);
  clock.advance(limits::demand_moment);
  EXPECT_EQ(ask_as(1, 0), span_state::sent);
  EXPECT_EQ(ask_as(2, 0), span_state::in_demand);
  EXPECT_EQ(ask_as(1, 0), span_state::in_demand);
  EXPECT_EQ(ask_as(3, 0), span_state::in_demand) << "two readers are no crowd";
}

TEST_F(PageDemandTest, WhoGotAPageGetsItAgain) {
  EXPECT_EQ(ask_as(1, 0), span_state::sent);
  use_up(0);
  EXPECT_EQ(ask_as(1, 0), span_state::in_demand);
}

TEST_F(PageDemandTest, PagesCountForThemselves) {
  use_up(0);
  EXPECT_EQ(ask(4096), span_state::sent);
}

TEST_F(PageDemandTest, WhoInsistsIsServed) {
  use_up(0);
  EXPECT_EQ(ask(0, page_span::insists), span_state::in_demand);
  EXPECT_EQ(ask(0), span_state::refused);
}

TEST_F(PageDemandTest, NobodyIsRefusedIfNobodyOffersThePage) {
  EXPECT_EQ(ask(0), span_state::sent) << "who reads first is not told to offer it";
  for (auto i = 0; i < 100; ++i)
    EXPECT_EQ(ask(0, 0), span_state::in_demand);
  EXPECT_EQ(ask(0, page_span::exports), span_state::in_demand);
  EXPECT_EQ(ask(0, 0), span_state::refused);
}

TEST_F(PageDemandTest, AMomentIsRememberedOnceItIsOver) {
  use_up(0);
  clock.advance(limits::demand_moment);
  EXPECT_EQ(ask(0), span_state::refused);
  clock.advance(limits::demand_moment);
  EXPECT_EQ(ask(0), span_state::sent);
}

TEST_F(PageDemandTest, ALongPauseForgetsAll) {
  use_up(0);
  clock.advance(2 * limits::demand_moment);
  EXPECT_EQ(ask(0), span_state::sent);
}

} // namespace
} // namespace hicache
