// The operations of hicache_tree.h on one rank.

#include "tests/c_abi/c_cache.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

namespace hicache::test {
namespace {

TEST(CTreeTest, APromptIsCachedTheSecondTime) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  const auto first = cache.serve(1, prompt, 11);
  EXPECT_EQ(first.l1_tokens, 0u);
  EXPECT_EQ(first.computed_tokens, prompt.size());
  const auto second = cache.serve(2, prompt, 11);
  EXPECT_EQ(second.l1_tokens, prompt.size() - page_tokens) << "the last token is computed";
  EXPECT_EQ(cache.serve(3, prompt_of(2), 12).l1_tokens, 0u);
}

TEST(CTreeTest, WhatL2HasIsLoadedLayerByLayer) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  auto evict = op_of(HC_OP_EVICT);
  evict.limit = prompt.size();
  EXPECT_EQ(cache.apply(evict).freed_tokens, prompt.size());
  const auto matched = cache.apply(op_of(HC_OP_MATCH, 2, prompt, prompt.size() - 1));
  EXPECT_EQ(matched.device_tokens, 0u);
  EXPECT_EQ(matched.host_tokens, prompt.size() - page_tokens);
  EXPECT_NE(matched.node, 0u);
  auto load = op_of(HC_OP_LOAD, 2);
  load.limit = HC_NO_LIMIT;
  const auto schedule = cache.apply(op_of(HC_OP_SCHEDULE, 2));
  EXPECT_EQ(schedule.is_ready, 1u);
  const auto loaded = cache.apply(std::vector{load});
  ASSERT_EQ(loaded[0].code, HC_OK) << loaded[0].text;
  EXPECT_EQ(loaded[0].loading_tokens, prompt.size() - page_tokens);
  EXPECT_EQ(loaded[0].page_count, prompt.size() / page_tokens - 1);
  const auto* progress = loaded[0].progress;
  ASSERT_NE(progress, nullptr);
  auto error = hc_error{};
  EXPECT_EQ(hc_cache_wait_for_layer(cache.get(), progress, nullptr, 0, &error), HC_OK);
  EXPECT_EQ(hc_progress_wait(progress, 1), HC_OK);
  auto layers = 0u;
  EXPECT_EQ(hc_progress_done(progress, &layers), HC_OK);
  EXPECT_EQ(layers, 2u);
  EXPECT_EQ(hc_progress_wait(progress, 2), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_wait_for_layer(cache.get(), progress, nullptr, 2, &error),
            HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "layer: 2; there are 2");
  for (auto i = 0u; i < loaded[0].device_tokens; ++i)
    EXPECT_EQ(*cache.row(1, 1, loaded[0].pages[i / page_tokens], i % page_tokens), 11);
  cache.apply(op_of(HC_OP_RELEASE, 2));
}

TEST(CTreeTest, PrefixesArePinnedAndLocked) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  auto pin = op_of(HC_OP_PIN, 0, prompt);
  pin.ttl_ms = 60'000;
  EXPECT_EQ(cache.apply(pin).pinned_tokens, prompt.size());
  EXPECT_EQ(cache.apply(op_of(HC_OP_UNPIN, 0, prompt)).pinned_tokens, 0u);
  const auto node = cache.apply(op_of(HC_OP_MATCH, 2, prompt, prompt.size())).node;
  cache.apply(op_of(HC_OP_RELEASE, 2));
  auto lock = op_of(HC_OP_LOCK);
  lock.node = node;
  EXPECT_EQ(cache.apply(lock).protected_tokens, prompt.size());
  auto evict = op_of(HC_OP_EVICT);
  evict.limit = prompt.size();
  EXPECT_EQ(cache.apply(evict).freed_tokens, 0u);
  lock.kind = HC_OP_UNLOCK;
  const auto unlocked = cache.apply(lock);
  EXPECT_EQ(unlocked.protected_tokens, 0u);
  EXPECT_EQ(unlocked.evictable_tokens, prompt.size());
  EXPECT_EQ(cache.apply(evict).freed_tokens, prompt.size());
  auto load = op_of(HC_OP_LOAD_NODE);
  load.node = node;
  load.limit = HC_NO_LIMIT;
  EXPECT_EQ(cache.apply(load).loading_tokens, prompt.size());
  cache.settle();
  cache.apply(op_of(HC_OP_CLEAR));
  EXPECT_EQ(cache.apply(op_of(HC_OP_MATCH, 3, prompt, prompt.size())).device_tokens, 0u);
  cache.apply(op_of(HC_OP_RELEASE, 3));
}

TEST(CTreeTest, APrefixIsWrittenToL2OnDemand) {
  auto cache = c_cache{rank_settings(R"(, "hicache-write-policy": "write_back")")};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  auto backup = op_of(HC_OP_BACKUP);
  backup.node = cache.apply(op_of(HC_OP_MATCH, 2, prompt, prompt.size())).node;
  EXPECT_EQ(cache.apply(backup).written_tokens, prompt.size());
  cache.apply(op_of(HC_OP_RELEASE, 2));
  cache.settle();
  auto counters = hc_cache_counters{};
  counters.size = sizeof(counters);
  ASSERT_EQ(hc_cache_stats(cache.get(), &counters), HC_OK);
  EXPECT_EQ(counters.bytes_l1_to_l2, prompt.size() * 2 * (2 * 4 * 8 * 2));
  EXPECT_EQ(counters.free_l1, 32u - 4);
  EXPECT_EQ(counters.free_l2, 64u - 4);
  EXPECT_GT(counters.steps, 0u);
}

TEST(CTreeTest, ASessionKeepsItsTurn) {
  auto cache = c_cache{};
  auto open = op_of(HC_OP_OPEN_SESSION);
  open.session = 5;
  open.flags = HC_OP_STREAMING;
  const auto generation = cache.apply(open).generation;
  auto match = op_of(HC_OP_MATCH, 1, prompt_of(1), 63);
  const auto prompt = prompt_of(1);
  match.tokens = prompt.data();
  match.session = 5;
  match.generation = generation;
  cache.apply(match);
  auto close = op_of(HC_OP_CLOSE_SESSION);
  close.session = 5;
  close.generation = generation;
  const auto refused = cache.apply(std::vector{close});
  EXPECT_EQ(refused[0].code, HC_INVALID_ARGUMENT) << "a request of it is open";
  EXPECT_STRNE(refused[0].text, "");
  cache.apply(op_of(HC_OP_RELEASE, 1));
  cache.apply(close);
}

TEST(CTreeTest, NamespacesAreApart) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  auto match = op_of(HC_OP_MATCH, 2, prompt, prompt.size());
  match.salt = "tenant";
  match.salt_bytes = 6;
  EXPECT_EQ(cache.apply(match).device_tokens, 0u);
  match.request = 3;
  match.salt_bytes = 0;
  match.extra_key = "lora";
  match.extra_key_bytes = 4;
  EXPECT_EQ(cache.apply(match).device_tokens, 0u);
  match.request = 4;
  match.extra_key_bytes = 0;
  EXPECT_EQ(cache.apply(match).device_tokens, prompt.size());
}

TEST(CTreeTest, AnOperationThatFailsDoesNotStopTheNext) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  const auto answers = cache.apply(
    {op_of(HC_OP_RELEASE, 7), op_of(HC_OP_MATCH, 1, prompt, 64), op_of(HC_OP_RELEASE, 1)});
  EXPECT_EQ(answers[0].code, HC_UNKNOWN_ID);
  EXPECT_EQ(answers[0].kind, uint32_t{HC_OP_RELEASE});
  EXPECT_STRNE(answers[0].text, "");
  EXPECT_EQ(answers[1].code, HC_OK);
  EXPECT_EQ(answers[1].text, nullptr);
  EXPECT_STREQ(answers[2].give_up, "none");
  EXPECT_STREQ(answers[2].l3_backend, "");
  auto count = size_t{0};
  EXPECT_NE(hc_answers_items(answers.get(), &count), nullptr);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(hc_answers_wait(answers.get(), 0, nullptr), HC_OK) << "they are there";
}

TEST(CTreeTest, AReleaseTellsTheTiersOfL3) {
  const auto folder = cache_folder{};
  const auto l3 = std::string{R"({\"prefetch_threshold\": 16, \"tiers\": [)"}
                  + R"({\"backend\": \"memory\", \"write\": \"never\"}, )"
                  + R"({\"backend\": \"file\", \"path\": \")" + folder.file("l3") + R"(\"}]})";
  auto cache = c_cache{rank_settings(R"(, "model-id": "m", "hicache-storage-backend": "tiered", )"
                                     R"("hicache-storage-backend-extra-config": ")"
                                     + l3 + "\"")};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  cache.apply(op_of(HC_OP_CLEAR));
  cache.apply({op_of(HC_OP_MATCH, 2, prompt, prompt.size() - 1), op_of(HC_OP_PREFETCH, 2)});
  cache.settle();
  auto load = op_of(HC_OP_LOAD, 2);
  load.limit = HC_NO_LIMIT;
  auto allocate = op_of(HC_OP_ALLOCATE, 2);
  allocate.limit = prompt.size();
  const auto answers = cache.apply({op_of(HC_OP_SCHEDULE, 2), load, allocate,
                                    op_of(HC_OP_INSERT, 2, prompt), op_of(HC_OP_RELEASE, 2)});
  EXPECT_EQ(answers[3].l3, nullptr);
  ASSERT_EQ(answers[4].code, HC_OK) << answers[4].text;
  EXPECT_STREQ(answers[4].l3_backend, "tiered");
  EXPECT_EQ(answers[4].l3_tokens, prompt.size() - page_tokens);
  ASSERT_NE(answers[4].l3, nullptr);
  const auto& use = *answers[4].l3;
  EXPECT_EQ(use.size, sizeof(hc_l3_use));
  ASSERT_EQ(use.tier_count, 2u);
  EXPECT_STREQ(use.tiers[0].tier, "memory");
  EXPECT_EQ(use.tiers[0].tokens, 0u);
  EXPECT_STREQ(use.tiers[1].tier, "file");
  EXPECT_EQ(use.tiers[1].tokens, prompt.size() - page_tokens);
  EXPECT_GT(use.compute_estimate_ns, 0u) << "the first prompt was computed";
  EXPECT_EQ(use.load_estimate_ns, 0u) << "nothing was read before";
  cache.settle();
}

TEST(CTreeTest, AnEngineMayBringItsOwnL1) {
  constexpr auto row = uint64_t{4 * 8 * 2};
  auto memory = std::vector<uint8_t>(2 * 2 * 33 * page_tokens * row);
  auto layers = std::vector<hc_layer>{};
  for (auto i = 0u; i < 4; ++i)
    layers.push_back({reinterpret_cast<uint64_t>(memory.data()) + i * 33 * page_tokens * row,
                      page_tokens * row,
                      row,
                      {}});
  auto options = hc_cache_options{};
  options.size = sizeof(options);
  options.layers = layers.data();
  options.layer_count = layers.size();
  options.l1_pages = 33;
  {
    auto cache = c_cache{rank_settings(), &options};
    const auto info = cache.info();
    EXPECT_EQ(info.row_bytes[0], row);
    EXPECT_EQ(info.row_bytes[2], 0u);
    EXPECT_EQ(info.is_host_addressable, 1u);
    EXPECT_EQ(info.device_pages, 32u);
    EXPECT_EQ(info.host_pages, 64u);
    EXPECT_EQ(cache.row(1, 1, 0, 0), memory.data() + 3 * 33 * page_tokens * row);
    cache.serve(1, prompt_of(1), 11);
    cache.serve(2, prompt_of(1), 11);
    EXPECT_EQ(std::ranges::count(memory, 11), 64 * 2 * 2 * static_cast<int64_t>(row) * 5 / 4)
      << "the last page of the second request is a duplicate, and was free again";
  }
  auto* none = static_cast<hc_cache*>(nullptr);
  auto error = hc_error{};
  options.l1_pages = 32;
  EXPECT_EQ(hc_cache_open(rank_settings().c_str(), &options, &none, &error), HC_INVALID_ARGUMENT);
  EXPECT_NE(std::string_view{error.text}.find("33 pages, padding included"), std::string::npos)
    << error.text;
}

TEST(CTreeTest, OperationsThatCannotBeUnderstoodAreNotSent) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  struct wrong {
    std::function<void(hc_op&)> damage;
    int32_t code;
    std::string_view sentence;
  };
  const auto cases = std::array{
    wrong{[](auto& op) { op.kind = 0; }, HC_UNSUPPORTED,
          "operation 1: kind: 0; expected one of enum hc_op_kind"},
    wrong{[](auto& op) { op.kind = 18; }, HC_UNSUPPORTED,
          "operation 1: kind: 18; expected one of enum hc_op_kind"},
    wrong{[](auto& op) { op.flags = HC_OP_CHUNKED; }, HC_UNSUPPORTED,
          "operation 1: flags: 1; this kind has no such flag"},
    wrong{[](auto& op) { op.reserved[3] = 1; }, HC_UNSUPPORTED,
          "operation 1: reserved: says more than this version of hicache knows"},
    wrong{[](auto& op) { op.tokens = nullptr; }, HC_INVALID_ARGUMENT,
          "operation 1: tokens: NULL, though there are some"},
    wrong{[](auto& op) { op.salt_bytes = 1; }, HC_INVALID_ARGUMENT,
          "operation 1: salt: NULL, though it has bytes"},
    wrong{[](auto& op) { op.extra_key_bytes = 1; }, HC_INVALID_ARGUMENT,
          "operation 1: extra_key: NULL, though it has bytes"},
    wrong{[](auto& op) {
            op.kind = HC_OP_EVICT;
            op.tier = 2;
          },
          HC_INVALID_ARGUMENT, "operation 1: tier: 2; expected HC_TIER_L1 or HC_TIER_L2"},
    wrong{[](auto& op) {
            op.kind = HC_OP_PIN;
            op.ttl_ms = UINT64_MAX;
          },
          HC_INVALID_ARGUMENT,
          "operation 1: ttl_ms: 18446744073709551615; expected a hundred years at most"},
  };
  for (const auto& each : cases) {
    auto ops = std::array{op_of(HC_OP_MATCH, 1, prompt, 64), op_of(HC_OP_MATCH, 2, prompt, 64)};
    each.damage(ops[1]);
    auto* answers = static_cast<hc_answers*>(nullptr);
    auto error = hc_error{};
    EXPECT_EQ(hc_cache_apply(cache.get(), ops.data(), 2, long_ms, &answers, &error), each.code);
    EXPECT_EQ(error.text, each.sentence);
    EXPECT_EQ(answers, nullptr);
  }
  EXPECT_EQ(cache.apply(std::vector{op_of(HC_OP_RELEASE, 1)})[0].code, HC_UNKNOWN_ID);
  const auto many = std::vector<hc_op>(HC_MAX_OPS + 1, op_of(HC_OP_CLEAR));
  auto* answers = static_cast<hc_answers*>(nullptr);
  auto error = hc_error{};
  EXPECT_EQ(hc_cache_apply(cache.get(), many.data(), many.size(), 0, &answers, &error),
            HC_LIMIT_REACHED);
  EXPECT_STREQ(error.text, "operations: 4097; expected 4096 at most");
}

TEST(CTreeTest, NullIsRefused) {
  auto cache = c_cache{};
  auto error = hc_error{};
  auto* answers = static_cast<hc_answers*>(nullptr);
  auto* news = static_cast<hc_news_list*>(nullptr);
  auto facts = hc_facts{};
  const auto op = op_of(HC_OP_CLEAR);
  auto* const none = static_cast<hc_cache*>(nullptr);
  EXPECT_EQ(hc_cache_apply(none, &op, 1, 0, &answers, &error), HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "cache: NULL; expected one that hc_cache_open opened");
  EXPECT_EQ(hc_cache_apply(cache.get(), &op, 1, 0, nullptr, &error), HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "answers: NULL; expected where the answers are put");
  EXPECT_EQ(hc_cache_apply(cache.get(), nullptr, 1, 0, &answers, &error), HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "operations: NULL, though there are some");
  EXPECT_EQ(hc_cache_step(cache.get(), 0, nullptr, &error), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_step(cache.get(), 0, &facts, &error), HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "facts: expected a struct whose size is 48");
  EXPECT_EQ(hc_cache_step(none, 0, &facts, &error), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_wait_for_layer(cache.get(), nullptr, nullptr, 0, &error), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_describe(cache.get(), nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_layer(cache.get(), 0, 0, nullptr), HC_INVALID_ARGUMENT);
  auto where = hc_layer{};
  EXPECT_EQ(hc_cache_layer(cache.get(), 2, 0, &where), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_layer(cache.get(), 0, 2, &where), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_stats(cache.get(), nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_poll(cache.get(), 0, nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_poll(none, 0, &news), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_cache_event_fd(none), -1);
  EXPECT_EQ(hc_cache_close(none), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_answers_free(nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_answers_wait(nullptr, 0, nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_news_free(nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_progress_wait(nullptr, 0), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_progress_done(nullptr, nullptr), HC_INVALID_ARGUMENT);
  auto count = size_t{7};
  EXPECT_EQ(hc_answers_items(nullptr, &count), nullptr);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(hc_news_items(nullptr, &count), nullptr);
}

TEST(CTreeTest, AWrongConfigurationIsOneSentence) {
  struct wrong {
    std::string config;
    std::string_view sentence;
  };
  const auto cases = std::array{
    wrong{"[]", "configuration: expected a JSON object"},
    wrong{"{", "configuration: expected a JSON object"},
    wrong{R"({"pages": 1})", R"(configuration: "pages" is not known; expected a setting)"},
    wrong{R"({"help": true})", R"(configuration: "help" is not known)"},
    wrong{R"({"page-size": [16]})", R"(configuration: "page-size": expected a text)"},
    wrong{R"({"page-size": 0})", "configuration: --page-size: "},
    wrong{R"({"page-size": "many"})", "configuration: "},
    wrong{R"({"page-size": 24, "device": "host"})", "configuration: --page-size"},
    wrong{R"({"device": "toaster"})", "configuration: --device: "},
    wrong{R"({"config": "/nowhere"})", "configuration: "},
    wrong{R"({"rank": 0})", "configuration: --rank requires --rendezvous"},
    wrong{R"({"rendezvous": "unix:/tmp/x", "rank": 2, "ranks": 2})",
          "configuration: --rank: there is no rank 2 of 2"},
  };
  for (const auto& each : cases) {
    auto* cache = static_cast<hc_cache*>(nullptr);
    auto error = hc_error{};
    EXPECT_EQ(hc_cache_open(each.config.c_str(), nullptr, &cache, &error), HC_INVALID_ARGUMENT)
      << each.config;
    EXPECT_TRUE(std::string_view{error.text}.starts_with(each.sentence)) << error.text;
    EXPECT_EQ(cache, nullptr);
  }
  auto error = hc_error{};
  EXPECT_EQ(hc_cache_open("{}", nullptr, nullptr, &error), HC_INVALID_ARGUMENT);
  auto* cache = static_cast<hc_cache*>(nullptr);
  EXPECT_EQ(hc_cache_open(nullptr, nullptr, &cache, &error), HC_INVALID_ARGUMENT);
  auto options = hc_cache_options{};
  EXPECT_EQ(hc_cache_open("{}", &options, &cache, &error), HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "options: size: 0; expected sizeof, 48");
  options.size = sizeof(options);
  options.flags = 2;
  EXPECT_EQ(hc_cache_open("{}", &options, &cache, &error), HC_UNSUPPORTED);
  options.flags = 0;
  options.layer_count = 4;
  EXPECT_EQ(hc_cache_open("{}", &options, &cache, &error), HC_INVALID_ARGUMENT);
  EXPECT_STREQ(error.text, "options: layers: NULL, though there are some");
}

TEST(CTreeTest, SettingsAreThoseOfTheFlags) {
  const auto folder = cache_folder{};
  auto cache = c_cache{R"({"device": "host", "page-size": 32, "device-pages": "40", "bigram": true,
    "hicache-ratio": 1.5, "kv-scales": "", "hicache-storage-backend": "file", "model-id": "m@1",
    "hicache-storage-backend-extra-config": {"path": ")"
                       + folder.file("l3") + R"("}})"};
  const auto info = cache.info();
  EXPECT_EQ(info.page_size, 32u);
  EXPECT_EQ(info.device_pages, 40u);
  EXPECT_EQ(info.host_pages, 60u);
  EXPECT_EQ(info.ranks, 1u);
  EXPECT_TRUE(std::filesystem::exists(folder.file("l3")));
}

} // namespace
} // namespace hicache::test
