#pragma once

#include "hicache_tree.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

/// Longer than anything here takes.
inline constexpr auto long_ms = uint32_t{60'000};

inline constexpr auto page_tokens = uint32_t{16};

/// A rank on the CPU, with 2 layers of 4 heads, 8 elements each, of 2 bytes.
inline std::string rank_settings(const std::string& more = {}) {
  return R"({"device": "host", "model": "tiny", "page-size": 16, "device-pages": 32)" + more + "}";
}

/// Tokens of a prompt that has nothing in common with those of other numbers.
inline std::vector<uint32_t> prompt_of(uint32_t number, uint32_t pages = 4) {
  auto tokens = std::vector<uint32_t>(pages * page_tokens);
  for (auto i = 0u; i < tokens.size(); ++i)
    tokens[i] = number * 1000 + i;
  return tokens;
}

inline hc_op op_of(hc_op_kind kind, uint64_t request = 0) {
  auto op = hc_op{};
  op.kind = kind;
  op.request = request;
  return op;
}

inline hc_op op_of(hc_op_kind kind, uint64_t request, const std::vector<uint32_t>& tokens,
                   uint64_t limit = 0) {
  auto op = op_of(kind, request);
  op.tokens = tokens.data();
  op.token_count = tokens.size();
  op.limit = limit;
  return op;
}

/// Answers, which end with this.
class c_answers {
public:
  explicit c_answers(hc_answers* all) : all_(all) {}

  c_answers(c_answers&& other) noexcept : all_(std::exchange(other.all_, nullptr)) {}

  c_answers& operator=(c_answers&&) = delete;

  ~c_answers() {
    if (all_ != nullptr) {
      EXPECT_EQ(hc_answers_free(all_), HC_OK);
    }
  }

  const hc_answer& operator[](size_t i) const {
    auto count = size_t{0};
    const auto* items = hc_answers_items(all_, &count);
    static constexpr auto none = hc_answer{-1, 0,  "there is no such answer",
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {},
                                           {}, {}, {}};
    return i < count ? items[i] : none;
  }

  hc_answers* get() const { return all_; }

private:
  hc_answers* all_;
};

/// A rank, and its turns.
class c_cache {
public:
  explicit c_cache(const std::string& config = rank_settings(),
                   const hc_cache_options* options = nullptr) {
    auto error = hc_error{};
    EXPECT_EQ(hc_cache_open(config.c_str(), options, &cache_, &error), HC_OK) << error.text;
  }

  c_cache(const c_cache&) = delete;

  c_cache& operator=(const c_cache&) = delete;

  ~c_cache() { close(); }

  void close() {
    if (cache_ != nullptr) {
      EXPECT_EQ(hc_cache_close(std::exchange(cache_, nullptr)), HC_OK);
    }
  }

  hc_cache* get() const { return cache_; }

  c_answers apply(const std::vector<hc_op>& ops) {
    auto error = hc_error{};
    auto* answers = static_cast<hc_answers*>(nullptr);
    EXPECT_EQ(hc_cache_apply(cache_, ops.data(), ops.size(), long_ms, &answers, &error), HC_OK)
      << error.text;
    return c_answers{answers};
  }

  /// The answer to one operation, of which no pointer is used.
  hc_answer apply(const hc_op& op) {
    const auto answers = apply(std::vector{op});
    EXPECT_EQ(answers[0].code, HC_OK) << answers[0].text;
    return answers[0];
  }

  hc_facts step(uint32_t wait_ms = 50) {
    auto facts = hc_facts{};
    facts.size = sizeof(facts);
    auto error = hc_error{};
    EXPECT_EQ(hc_cache_step(cache_, wait_ms, &facts, &error), HC_OK) << error.text;
    return facts;
  }

  /// Until nothing is under way.
  void settle() {
    while (step().in_flight != 0)
      ;
  }

  hc_cache_info info() const {
    auto info = hc_cache_info{};
    info.size = sizeof(info);
    EXPECT_EQ(hc_cache_describe(cache_, &info), HC_OK);
    return info;
  }

  /// The bytes of a token's row in L1.
  uint8_t* row(uint32_t part, uint32_t layer, uint32_t page, uint32_t token) const {
    auto where = hc_layer{};
    EXPECT_EQ(hc_cache_layer(cache_, part, layer, &where), HC_OK);
    return reinterpret_cast<uint8_t*>(where.address + page * where.page_stride
                                      + token * where.token_stride);
  }

  /// Serves a prompt as an engine does; rows that are computed are filled with a byte. All others
  /// have to hold it.
  /// @returns how its release was answered; its strings are not there any more
  hc_answer serve(uint64_t request, const std::vector<uint32_t>& prompt, uint8_t byte) {
    apply({op_of(HC_OP_MATCH, request, prompt, prompt.size() - 1), op_of(HC_OP_PREFETCH, request),
           op_of(HC_OP_SCHEDULE, request)});
    auto load = op_of(HC_OP_LOAD, request);
    load.limit = HC_NO_LIMIT;
    auto allocate = op_of(HC_OP_ALLOCATE, request);
    allocate.limit = prompt.size();
    const auto room = apply({load, allocate});
    EXPECT_EQ(room[1].code, HC_OK) << room[1].text;
    const auto info = this->info();
    for (auto layer = 0u; layer < info.layers; ++layer) {
      if (room[0].progress != nullptr) {
        EXPECT_EQ(hc_progress_wait(room[0].progress, layer), HC_OK);
      }
      for (auto part = 0u; part < info.parts; ++part)
        for (auto i = 0u; i < prompt.size(); ++i) {
          auto* bytes = row(part, layer, room[1].pages[i / page_tokens], i % page_tokens);
          const auto wanted = std::vector<uint8_t>(info.row_bytes[part], byte);
          if (i < room[0].device_tokens) {
            EXPECT_EQ(std::memcmp(bytes, wanted.data(), wanted.size()), 0) << "token " << i;
          } else {
            std::memcpy(bytes, wanted.data(), wanted.size());
          }
        }
    }
    const auto closed
      = apply({op_of(HC_OP_INSERT, request, prompt), op_of(HC_OP_RELEASE, request)});
    EXPECT_EQ(closed[0].code, HC_OK) << closed[0].text;
    EXPECT_EQ(closed[1].code, HC_OK) << closed[1].text;
    settle();
    return closed[1];
  }

private:
  hc_cache* cache_ = nullptr;
};

/// A folder of its own.
class cache_folder {
public:
  cache_folder() {
    auto name = std::string{"/tmp/hicache-c-tree-XXXXXX"};
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }

  cache_folder(const cache_folder&) = delete;

  cache_folder& operator=(const cache_folder&) = delete;

  ~cache_folder() { std::filesystem::remove_all(path_); }

  std::string file(const std::string& name) const { return path_ + "/" + name; }

private:
  std::string path_;
};

} // namespace hicache::test
