#include "hicache/handoff.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/runtime.hpp"
#include "runtime/handoff_messages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace hicache {
namespace {

constexpr auto page_size = 4U;
constexpr auto heads = 4U;
constexpr auto layers = 2U;
constexpr auto tokens = uint64_t{14};

/// All ranks of an instance, in this process.
class instance {
public:
  instance(uint32_t ranks, const std::string& model = "a", bool is_remote = false) {
    config.device = device_kind::host;
    config.attention = attention_kind::mha;
    config.layers = layers;
    config.kv_heads = heads;
    config.head_dim = 8;
    config.dtype = element_type::fp32;
    config.page_size = page_size;
    config.l1_pages = 16;
    config.model_id = model;
    config.log_level = log_level::warn;
    if (is_remote)
      config.extra_config = R"({"force_remote_reads": true})";
    const auto finished = config.finish(ranks);
    EXPECT_TRUE(finished) << finished.error().detail;
    auto reducers = make_local_reducers(ranks);
    runtimes.resize(ranks);
    on_all([&](uint32_t rank) {
      auto started = rank_runtime::start(config, std::move(reducers[rank]));
      EXPECT_TRUE(started);
      runtimes[rank] = std::move(*started);
    });
  }

  ~instance() {
    on_all([&](uint32_t rank) { runtimes[rank].reset(); });
  }

  template <class Function>
  void on_all(Function function) {
    auto threads = std::vector<std::jthread>{};
    for (auto rank = 0U; rank < runtimes.size(); ++rank)
      threads.emplace_back(function, rank);
  }

  uint32_t ranks() const { return static_cast<uint32_t>(runtimes.size()); }

  /// A row of a head in L1.
  float* row(uint32_t rank, uint32_t part, uint32_t layer, page_index page, uint32_t token,
             uint32_t head) {
    const auto& pool = runtimes[rank]->device_buffers();
    const auto& buffer = pool.buffers[part * layers + layer];
    return reinterpret_cast<float*>(buffer.address + page * buffer.page_stride
                                    + token * buffer.token_stride)
           + head * 8;
  }

  rank_config config;
  std::vector<std::unique_ptr<rank_runtime>> runtimes;
};

/// What belongs into a row: different for each head of the model.
float value(uint32_t part, uint32_t layer, uint64_t token, uint32_t head) {
  return static_cast<float>(((part * layers + layer) * 100 + token) * heads + head + 1);
}

class prefill : public instance {
public:
  explicit prefill(uint32_t ranks, const std::string& model = "a") : instance(ranks, model) {
    senders.resize(ranks);
    on_all([&](uint32_t rank) {
      auto started = handoff_sender::start(*runtimes[rank], config, 1 << 20);
      ASSERT_TRUE(started) << started.error().detail;
      senders[rank] = std::move(*started);
    });
    const auto count = heads / ranks;
    for (auto rank = 0U; rank < ranks; ++rank)
      for (auto part = 0U; part < 2; ++part)
        for (auto layer = 0U; layer < layers; ++layer)
          for (auto token = 0U; token < tokens; ++token)
            for (auto head = 0U; head < count; ++head)
              std::fill_n(row(rank, part, layer, pages[token / page_size], token % page_size, head),
                          8, value(part, layer, token, rank * count + head));
  }

  ~prefill() { senders.clear(); }

  std::string open(uint64_t handoff, uint64_t first_page, uint32_t receivers) {
    auto offer = std::string{};
    for (auto& sender : senders) {
      auto opened = sender->open({handoff, first_page, tokens, receivers});
      EXPECT_TRUE(opened);
      EXPECT_TRUE(offer.empty() || offer == *opened) << "equal on all ranks";
      offer = *opened;
    }
    return offer;
  }

  std::string stage(uint64_t handoff, uint32_t layer, uint64_t count) {
    for (auto& sender : senders)
      sender->stage(handoff, layer, pages, count);
    return senders.front()->announce(handoff, layer);
  }

  const std::vector<page_index> pages{3, 5, 2, 9};
  std::vector<std::unique_ptr<handoff_sender>> senders;
};

class decode : public instance {
public:
  explicit decode(uint32_t ranks, const std::string& model = "a", bool is_remote = false)
    : instance(ranks, model, is_remote) {
    for (auto& runtime : runtimes) {
      auto started = handoff_receiver::start(*runtime, config, [this] {
        const auto guard = std::lock_guard{mutex};
        ++changes;
        changed.notify_all();
      });
      EXPECT_TRUE(started);
      receivers.push_back(std::move(*started));
    }
  }

  ~decode() { receivers.clear(); }

  void open(uint64_t handoff, uint64_t first_page) {
    for (auto& receiver : receivers)
      receiver->open(handoff, first_page, tokens, pages);
  }

  void hear(uint64_t handoff, const std::string& message) {
    for (auto& receiver : receivers)
      receiver->hear(handoff, message);
  }

  /// Waits until all ranks are done or have failed.
  void wait(uint64_t handoff) {
    auto lock = std::unique_lock{mutex};
    const auto is_over = [&] {
      return std::ranges::all_of(receivers, [&](const auto& x) {
        const auto state = x->state(handoff);
        return state.missing == 0 || state.failure.code != ec::none;
      });
    };
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds{30}, is_over));
  }

  void expect_rows(uint64_t first_page) {
    const auto count = heads / ranks();
    for (auto rank = 0U; rank < ranks(); ++rank)
      for (auto part = 0U; part < 2; ++part)
        for (auto layer = 0U; layer < layers; ++layer)
          for (auto token = first_page * page_size; token < tokens; ++token)
            for (auto head = 0U; head < count; ++head)
              for (auto i = 0; i < 8; ++i)
                ASSERT_EQ(row(rank, part, layer, pages[token / page_size],
                              static_cast<uint32_t>(token % page_size), head)[i],
                          value(part, layer, token, rank * count + head))
                  << rank << " " << part << " " << layer << " " << token << " " << head;
  }

  const std::vector<page_index> pages{8, 1, 4, 7};
  std::vector<std::unique_ptr<handoff_receiver>> receivers;
  std::mutex mutex; // Guards what follows.
  std::condition_variable changed;
  int changes = 0;
};

TEST(HandoffTest, PagesComeLayerByLayerToAnyNumberOfRanks) {
  for (const auto is_remote : {false, true})
    for (const auto senders : {1U, 2U, 4U})
      for (const auto receivers : {1U, 2U, 4U}) {
        auto from = prefill{senders};
        auto to = decode{receivers, "a", is_remote};
        to.open(1, 1);
        to.hear(1, from.open(9, 1, receivers));
        EXPECT_EQ(to.receivers.front()->state(1).missing, 3 * layers);
        // Half of the prompt, then all of it.
        for (const auto count : {uint64_t{9}, tokens})
          for (auto layer = 0U; layer < layers; ++layer)
            to.hear(1, from.stage(9, layer, count));
        to.wait(1);
        EXPECT_FALSE(to.receivers.front()->state(1).first_token);
        to.hear(1, handoff_end(77));
        for (auto& receiver : to.receivers) {
          EXPECT_EQ(receiver->state(1).first_token, 77U);
          EXPECT_EQ(receiver->state(1).failure.detail, "");
        }
        to.expect_rows(1);
        for (auto& receiver : to.receivers)
          receiver->close(1);
        for (auto& sender : from.senders) {
          EXPECT_GT(sender->used_bytes(), 0U);
          sender->close(9);
          EXPECT_EQ(sender->used_bytes(), 0U);
        }
      }
}

TEST(HandoffTest, WhatASenderEndedIsNotRead) {
  for (const auto is_remote : {false, true}) {
    auto from = prefill{1};
    auto to = decode{1, "a", is_remote};
    to.open(1, 0);
    to.hear(1, from.open(9, 0, 1));
    const auto announced = from.stage(9, 0, tokens);
    from.senders.front()->close(9);
    // Another handoff uses the same memory.
    from.open(10, 0, 1);
    from.stage(10, 0, tokens);
    to.hear(1, announced);
    to.wait(1);
    EXPECT_EQ(to.receivers.front()->state(1).failure.code, ec::not_found);
    to.receivers.front()->close(1);
  }
}

TEST(HandoffTest, MessagesThatAreWrongFailIt) {
  auto from = prefill{1};
  auto stranger = prefill{1, "b"};
  auto to = decode{1};
  const auto offer = from.open(9, 0, 1);
  const auto failure_after = [&](std::vector<std::string> messages) {
    to.open(1, 0);
    for (const auto& message : messages)
      to.hear(1, message);
    auto why = to.receivers.front()->state(1).failure;
    to.receivers.front()->close(1);
    return why.detail;
  };
  EXPECT_EQ(failure_after({offer}), "");
  EXPECT_NE(failure_after({"nonsense"}).find("no message of a handoff"), std::string::npos);
  EXPECT_NE(failure_after({R"({"layer": 0, "pages": "x"})"}).find("no message"), std::string::npos);
  EXPECT_NE(failure_after({R"({"layer": 0, "pages": 1})"}).find("offered nothing"),
            std::string::npos);
  EXPECT_NE(failure_after({offer, R"({"layer": 2, "pages": 1})"}).find("did not offer"),
            std::string::npos);
  EXPECT_NE(failure_after({offer, R"({"layer": 0, "pages": 5})"}).find("did not offer"),
            std::string::npos);
  EXPECT_NE(failure_after({offer, offer}).find("other pages"), std::string::npos);
  EXPECT_NE(failure_after({from.open(10, 1, 1)}).find("other pages"), std::string::npos);
  EXPECT_NE(failure_after({from.open(11, 0, 2)}).find("other pages"), std::string::npos);
  EXPECT_NE(failure_after({stranger.open(9, 0, 1)}).find("another model"), std::string::npos);
  EXPECT_EQ(failure_after({offer, handoff_failure("it is full")}), "it is full");
}

/// The memory that the only sender of this process exports.
std::span<std::byte> exported_memory() {
  auto maps = std::ifstream{"/proc/self/maps"};
  for (auto line = std::string{}; std::getline(maps, line);) {
    auto begin = uint64_t{0};
    auto end = uint64_t{0};
    if (line.find("memfd:hicache-handoff") != std::string::npos
        && line.find(" rw-s ") != std::string::npos
        && std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2)
      return {reinterpret_cast<std::byte*>(begin), end - begin};
  }
  return {};
}

TEST(HandoffTest, ADamagedPageDoesNotCount) {
  for (const auto is_remote : {false, true}) {
    auto from = prefill{1};
    auto to = decode{1, "a", is_remote};
    to.open(1, 0);
    to.hear(1, from.open(9, 0, 1));
    const auto announced = from.stage(9, 0, tokens);
    const auto memory = exported_memory();
    ASSERT_FALSE(memory.empty());
    memory[128 + 5] ^= std::byte{1}; // In the first object, behind its header.
    to.hear(1, announced);
    to.wait(1);
    EXPECT_EQ(to.receivers.front()->state(1).failure.code, ec::corrupt_page);
    to.receivers.front()->close(1);
  }
}

TEST(HandoffTest, MessagesSurviveTheWay) {
  const auto offer = handoff_offer{1, 2, 3, 4, 5, 6, UINT64_MAX, {{"a:1", "b", 7}}};
  EXPECT_EQ(std::get<handoff_offer>(*parse_handoff_message(to_line(offer))), offer);
  EXPECT_EQ(std::get<handoff_progress>(*parse_handoff_message(to_line(handoff_progress{3, 4}))),
            (handoff_progress{3, 4}));
  EXPECT_EQ(std::get<handoff_last>(*parse_handoff_message(handoff_end(5))).token, 5U);
  EXPECT_TRUE(is_last(handoff_end(5)));
  for (const auto& other : {to_line(offer), to_line(handoff_progress{3, 4}), handoff_failure("a")})
    EXPECT_FALSE(is_last(other)) << other;
  EXPECT_EQ(std::get<error>(*parse_handoff_message(handoff_failure("a\xff"))).code,
            ec::peer_unreachable);
}

TEST(HandoffTest, OtherLinesThanMessagesAreRefused) {
  for (const auto* const line : {"", "7", "{}", "[1]", "{\"token\":-1}", "{\"token\":1e300}",
                                 "{\"layer\":3,\"pages\":1.5}"}) {
    const auto parsed = parse_handoff_message(line);
    ASSERT_FALSE(parsed) << line;
    EXPECT_EQ(parsed.error().code, ec::malformed_message);
  }
}

} // namespace
} // namespace hicache
