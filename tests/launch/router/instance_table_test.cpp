// The instances behind the router, in virtual time.

#include "cache/hash/page_hash.hpp"
#include "cache/prefix/event_message.hpp"
#include "launch/router/instance_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const auto prompt = routed_prompt{std::vector<token_id>(1000, 5), {}};

class InstanceTableTest : public testing::Test {
protected:
  static instance_table::options chosen() {
    auto options = instance_table::options{};
    options.breaker.pause_min = 1s;
    options.breaker.pause_max = 4s;
    return options;
  }

  /// Adds an instance that has answered.
  instance_slot add(const std::string& text) {
    const auto slot = table_.add(*parse_instance(text));
    EXPECT_TRUE(slot);
    EXPECT_TRUE(probe(*slot, true));
    return *slot;
  }

  /// @returns whether a probe was admitted
  bool probe(instance_slot slot, bool is_fine, std::optional<instance_role> role = std::nullopt) {
    const auto pass = table_.admit_probe(slot, now_);
    if (!pass)
      return false;
    table_.probed(slot, *pass, is_fine ? std::optional{probe_answer{role, "models"}} : std::nullopt,
                  now_);
    return true;
  }

  std::shared_ptr<instance_lease> choose(uint64_t tried = 0) {
    return table_.choose(prompt, tried, now_);
  }

  /// Address of the instance that completes a prompt, with this outcome.
  std::string complete(request_outcome outcome, uint64_t tried = 0) {
    const auto lease = choose(tried);
    if (!lease)
      return {};
    lease->ended(outcome, now_);
    return lease->address();
  }

  time_point now_{1h};
  instance_table table_{chosen()};
};

TEST_F(InstanceTableTest, NothingIsSentBeforeAnInstanceHasAnswered) {
  EXPECT_FALSE(table_.is_ready());
  const auto slot = table_.add(*parse_instance("10.0.0.1:80"));
  ASSERT_TRUE(slot);
  EXPECT_FALSE(choose());
  EXPECT_TRUE(probe(*slot, false));
  EXPECT_FALSE(choose());
  EXPECT_EQ(table_.models(), "");
  EXPECT_TRUE(probe(*slot, true));
  EXPECT_TRUE(table_.is_ready());
  EXPECT_EQ(table_.models(), "models");
  EXPECT_EQ(complete(request_outcome::answered), "10.0.0.1:80");
}

TEST_F(InstanceTableTest, LoadSpreadsAndEndsWithTheLease) {
  add("a:1");
  add("b:1");
  const auto first = choose();
  {
    const auto second = choose();
    EXPECT_NE(first->address(), second->address());
    EXPECT_EQ(table_.running(), 2u);
    for (const auto& each : table_.status()) {
      EXPECT_EQ(each.running, 1u);
      EXPECT_EQ(each.waiting_tokens, 1000u);
    }
    second->started();
    second->started();
    EXPECT_EQ(choose()->address(), second->address()) << "its prompt is computed";
  }
  EXPECT_EQ(table_.running(), 1u);
  EXPECT_FALSE(table_.wait_until_idle(0s));
  first->ended(request_outcome::answered, now_);
  EXPECT_TRUE(table_.wait_until_idle(0s));
  for (const auto& each : table_.status()) {
    EXPECT_EQ(each.running, 0u);
    EXPECT_EQ(each.waiting_tokens, 0u);
  }
  EXPECT_THAT(table_.status()[0].outcomes, ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(table_.status()[1].outcomes, ElementsAre(0, 0, 0, 0, 2)) << "abandoned";
}

TEST_F(InstanceTableTest, AnInstanceThatFailsThreeTimesIsLeftAloneUntilItAnswers) {
  const auto slot = add("a:1");
  for (auto i = 0; i < 3; ++i)
    EXPECT_EQ(complete(request_outcome::failed), "a:1");
  EXPECT_FALSE(choose());
  EXPECT_EQ(table_.status()[0].breaker, breaker_state::open);
  EXPECT_FALSE(probe(slot, true)) << "not yet";
  now_ += 1s;
  EXPECT_TRUE(probe(slot, false));
  now_ += 1s;
  EXPECT_FALSE(probe(slot, true)) << "the pause has doubled";
  now_ += 1s;
  EXPECT_TRUE(probe(slot, true));
  EXPECT_EQ(complete(request_outcome::answered), "a:1");
}

TEST_F(InstanceTableTest, RefusalsAreNoFailures) {
  add("a:1");
  for (auto i = 0; i < 10; ++i)
    EXPECT_EQ(complete(request_outcome::refused), "a:1");
  EXPECT_TRUE(table_.is_ready());
}

TEST_F(InstanceTableTest, WhoFailedThisRequestIsNotChosenForItAgain) {
  const auto a = add("a:1");
  const auto b = add("b:1");
  EXPECT_EQ(complete(request_outcome::failed, uint64_t{1} << a), "b:1");
  EXPECT_EQ(complete(request_outcome::failed, uint64_t{1} << b), "a:1");
  EXPECT_FALSE(choose(uint64_t{1} << a | uint64_t{1} << b));
}

TEST_F(InstanceTableTest, ADrainingInstanceGetsNothingNew) {
  add("a:1");
  add("b:1");
  const auto under_way = choose();
  ASSERT_EQ(under_way->address(), "a:1");
  EXPECT_TRUE(table_.set_draining("a:1", true));
  for (auto i = 0; i < 4; ++i)
    EXPECT_EQ(complete(request_outcome::answered), "b:1");
  EXPECT_EQ(table_.status()[0].running, 1u);
  under_way->ended(request_outcome::answered, now_);
  EXPECT_TRUE(table_.set_draining("a:1", false));
  EXPECT_EQ(complete(request_outcome::answered), "a:1");
  EXPECT_EQ(table_.set_draining("c:1", true).error().detail, "c:1 is no instance");
}

TEST_F(InstanceTableTest, ALeaseOutlivesItsInstance) {
  const auto slot = add("a:1");
  const auto lease = choose();
  EXPECT_EQ(table_.remove("a:1"), slot);
  EXPECT_EQ(table_.remove("a:1").error().code, ec::unknown_id);
  EXPECT_EQ(add("b:1"), slot) << "in the same slot";
  lease->ended(request_outcome::failed, now_);
  EXPECT_EQ(table_.status()[0].running, 0u);
  EXPECT_THAT(table_.status()[0].outcomes, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_EQ(table_.running(), 0u);
}

TEST_F(InstanceTableTest, AnAddressIsAddedOnceAndPlacesAreBounded) {
  for (auto i = 1u; i <= router_instances; ++i)
    ASSERT_TRUE(table_.add(*parse_instance("a:" + std::to_string(i))));
  EXPECT_THAT(table_.add(*parse_instance("a:7")).error().detail,
              HasSubstr("is an instance already"));
  EXPECT_EQ(table_.add(*parse_instance("b:1")).error().code, ec::limit_reached);
}

TEST_F(InstanceTableTest, AnInstanceSaysItsRoleUnlessTheOperatorDoes) {
  const auto a = add("a:1");
  const auto b = add("b:1,role=decode");
  EXPECT_TRUE(probe(a, true, instance_role::prefill));
  EXPECT_TRUE(probe(b, true, instance_role::both));
  const auto lease = choose();
  EXPECT_EQ(lease->address(), "b:1");
  EXPECT_THAT(lease->prefill(), ElementsAre("a:1"));
  EXPECT_EQ(table_.status()[0].waiting_tokens, 1000u) << "it computes the prompt";
  EXPECT_EQ(table_.status()[1].waiting_tokens, 0u);
  lease->started();
  EXPECT_EQ(table_.status()[0].waiting_tokens, 0u);
  EXPECT_TRUE(probe(a, true));
  EXPECT_EQ(choose()->address(), "a:1") << "now one that does both, and is idle";
}

TEST_F(InstanceTableTest, EventsLeadAPromptToItsPages) {
  add("a:1");
  const auto b = add("b:1");
  const auto tokens = std::vector<token_id>(1000, 5);
  const auto events = std::vector<cache_event>{
    pages_stored{cache_medium::l1, {}, {}, hash_pages(tokens, 8, nullptr), tokens}};
  ASSERT_TRUE(table_.apply_events(b, event_message(event_format::sglang, 0, events, 8)));
  for (auto i = 0; i < 3; ++i) {
    const auto lease = table_.choose(table_.name(tokens, {}), 0, now_);
    EXPECT_EQ(lease->address(), "b:1");
    EXPECT_EQ(table_.status()[1].waiting_tokens, 0u);
  }
  EXPECT_EQ(table_.status()[1].pages, 125u);
  EXPECT_EQ(table_.status()[1].expected_tokens, 3000u);
  EXPECT_EQ(table_.status()[1].prompt_tokens, 3000u);
  table_.lose_events(b);
  EXPECT_EQ(table_.status()[1].pages, 0u);
  EXPECT_EQ(table_.status()[1].events_lost, 1u);
  EXPECT_EQ(table_.choose(table_.name(tokens, {}), 0, now_)->address(), "a:1");
}

TEST(ParseInstanceTest, PartsAreRead) {
  const auto all = parse_instance("[::1]:80,events=tcp://h:5557,replay=ipc:///r,role=prefill");
  ASSERT_TRUE(all) << all.error().detail;
  EXPECT_EQ(all->address, "[::1]:80");
  EXPECT_EQ(all->events, "tcp://h:5557");
  EXPECT_EQ(all->replay, "ipc:///r");
  EXPECT_EQ(all->role, instance_role::prefill);
  const auto few = parse_instance("host:80");
  ASSERT_TRUE(few);
  EXPECT_FALSE(few->role);
  EXPECT_THAT(few->events, IsEmpty());
}

TEST(ParseInstanceTest, BadPartsAreNamed) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
         {"", "'' is no address of an instance; expected HOST:PORT"},
         {"host", "'host' is no address"},
         {"host:0", "'host:0' is no address"},
         {"unix:/x", "'unix:/x' is no address"},
         {"h:1,", "'' is no part of an instance"},
         {"h:1,events=", "'events=' is no part of an instance"},
         {"h:1,colour=red", "'colour=red' is no part of an instance; expected events=ENDPOINT"},
         {"h:1,role=king", "role 'king' is not known"},
         {"h:1,replay=tcp://x:1", "a replay without events"}})
    EXPECT_THAT(parse_instance(text).error().detail, HasSubstr(expected));
}

} // namespace
} // namespace hicache
