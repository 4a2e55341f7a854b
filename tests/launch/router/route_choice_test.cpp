// Which instance completes a prompt.

#include "launch/router/route_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace hicache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const auto weights = route_weights{};

route_candidate idle(instance_slot slot, instance_role role = instance_role::both) {
  auto candidate = route_candidate{};
  candidate.slot = slot;
  candidate.role = role;
  return candidate;
}

instance_slot target_of(const std::vector<route_candidate>& candidates, uint64_t tokens) {
  const auto choice = choose_route(candidates, tokens, weights);
  EXPECT_TRUE(choice);
  return choice ? choice->target : router_instances;
}

TEST(RouteChoiceTest, NobodyIsChosenAmongNobody) {
  EXPECT_FALSE(choose_route({}, 100, weights));
}

TEST(RouteChoiceTest, ThePrefixDecides) {
  auto candidates = std::vector{idle(0), idle(1), idle(2)};
  candidates[1].cached = {512, 0, 0};
  EXPECT_EQ(target_of(candidates, 600), 1u);
  candidates[2].cached = {0, 576, 0};
  EXPECT_EQ(target_of(candidates, 600), 2u) << "a longer one, though in L2";
  candidates[0].cached = {576, 0, 0};
  EXPECT_EQ(target_of(candidates, 600), 0u) << "L1 before L2";
  candidates[0].cached = {0, 0, 576};
  EXPECT_EQ(target_of(candidates, 600), 2u) << "L2 before L3";
}

TEST(RouteChoiceTest, LoadOutweighsAShortPrefix) {
  auto candidates = std::vector{idle(0), idle(1)};
  candidates[0].cached = {64, 0, 0};
  candidates[0].running = 1;
  EXPECT_EQ(target_of(candidates, 1000), 1u);
  candidates[0].cached = {960, 0, 0};
  EXPECT_EQ(target_of(candidates, 1000), 0u);
  candidates[0].waiting_tokens = 5000;
  EXPECT_EQ(target_of(candidates, 1000), 1u);
  candidates[1].running = 30;
  EXPECT_EQ(target_of(candidates, 1000), 0u);
}

TEST(RouteChoiceTest, WhatASharedL3HasMakesLoadDecide) {
  auto candidates = std::vector{idle(0), idle(1)};
  candidates[0].cached = {1024, 0, 0};
  candidates[0].running = 1;
  EXPECT_EQ(target_of(candidates, 1024), 0u);
  candidates[1].cached = {0, 0, 1024};
  EXPECT_EQ(target_of(candidates, 1024), 1u);
}

TEST(RouteChoiceTest, EqualsTakeTurns) {
  auto candidates = std::vector{idle(0), idle(1), idle(2)};
  auto choices = uint64_t{0};
  auto order = std::vector<instance_slot>{};
  for (auto i = 0; i < 6; ++i) {
    order.push_back(target_of(candidates, 100));
    candidates[order.back()].last_chosen = ++choices;
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(RouteChoiceTest, APrefixLongerThanThePromptIsThePrompt) {
  auto candidate = idle(0);
  candidate.cached = {128, 0, 0};
  EXPECT_EQ(route_cost(candidate, 100, weights), 0);
}

TEST(RouteChoiceTest, DecodeInstancesAskThosePrefillInstancesThatSuitThePrompt) {
  auto candidates = std::vector{
    idle(0, instance_role::prefill), idle(1, instance_role::decode),
    idle(2, instance_role::prefill), idle(3, instance_role::prefill),
    idle(4, instance_role::prefill), idle(5, instance_role::decode),
  };
  candidates[1].running = 2;
  candidates[2].cached = {256, 0, 0};
  candidates[3].waiting_tokens = 4000;
  const auto choice = choose_route(candidates, 512, weights);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->target, 5u);
  EXPECT_THAT(choice->prefill, ElementsAre(2, 0, 4)) << "three at most";
}

TEST(RouteChoiceTest, RolesThatAreNotThereAreDoneWithout) {
  const auto alone = choose_route(std::vector{idle(1, instance_role::prefill)}, 512, weights);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->target, 1u);
  EXPECT_THAT(alone->prefill, IsEmpty());
  const auto decode = choose_route(std::vector{idle(2, instance_role::decode)}, 512, weights);
  ASSERT_TRUE(decode);
  EXPECT_THAT(decode->prefill, IsEmpty()) << "it computes the prompt itself";
  const auto both = choose_route(
    std::vector{idle(0, instance_role::prefill), idle(3, instance_role::both)}, 512, weights);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->target, 3u);
  EXPECT_THAT(both->prefill, IsEmpty());
}

TEST(RouteChoiceTest, RolesHaveNames) {
  for (const auto role : {instance_role::both, instance_role::prefill, instance_role::decode})
    EXPECT_EQ(parse_role(to_string(role)), role);
  const auto unknown = parse_role("draft");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().detail, "role 'draft' is not known; expected both, prefill or decode");
}

} // namespace
} // namespace hicache
