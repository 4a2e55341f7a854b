#pragma once

#include "hicache.h"
#include "tests/c_abi/node_process.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

inline constexpr auto page_size = size_t{4096};

/// Longer than anything here takes.
inline constexpr auto patience_ms = uint32_t{60'000};

inline hc_key key_of(uint64_t number) {
  auto random = std::mt19937_64{number};
  auto key = hc_key{};
  for (auto& byte : key.bytes)
    byte = static_cast<uint8_t>(random());
  return key;
}

inline std::vector<hc_key> keys_of(std::initializer_list<uint64_t> numbers) {
  auto keys = std::vector<hc_key>{};
  for (const auto number : numbers)
    keys.push_back(key_of(number));
  return keys;
}

using page_bytes = std::vector<uint8_t>;

/// Bytes that belong to one number and no other.
inline page_bytes bytes_of(uint64_t number, size_t count = page_size) {
  auto random = std::mt19937_64{~number};
  auto bytes = page_bytes(count);
  for (auto& byte : bytes)
    byte = static_cast<uint8_t>(random());
  return bytes;
}

inline hc_call call_for(uint32_t timeout_ms = patience_ms) {
  auto call = hc_call{};
  call.size = sizeof(call);
  call.timeout_ms = timeout_ms;
  return call;
}

inline std::string configuration(const std::string& socket, const std::string& more = {}) {
  return R"({"socket": ")" + socket + R"(", "namespace": "test")" + more + "}";
}

/// A client, and its calls one after the other.
class c_client {
public:
  explicit c_client(const std::string& config) {
    auto error = hc_error{};
    EXPECT_EQ(hc_open(config.c_str(), nullptr, &client_, &error), HC_OK) << error.text;
  }

  c_client(const c_client&) = delete;

  c_client& operator=(const c_client&) = delete;

  ~c_client() { close(); }

  void close() {
    if (client_ != nullptr) {
      EXPECT_EQ(hc_close(std::exchange(client_, nullptr)), HC_OK);
    }
  }

  hc_client* get() const { return client_; }

  /// Waits for a call.
  hc_completion wait(hc_ticket ticket) {
    auto done = hc_completion{};
    EXPECT_EQ(hc_wait(client_, ticket, patience_ms, &done), HC_OK);
    return done;
  }

  int32_t put(uint64_t number, const page_bytes& bytes, uint32_t timeout_ms = patience_ms) {
    return one_page(hc_put, number, const_cast<page_bytes&>(bytes), timeout_ms);
  }

  int32_t put(uint64_t number, uint32_t timeout_ms = patience_ms) {
    return put(number, bytes_of(number), timeout_ms);
  }

  int32_t get(uint64_t number, page_bytes& bytes, uint32_t timeout_ms = patience_ms,
              hc_lease* lease = nullptr) {
    return one_page(hc_get, number, bytes, timeout_ms, lease);
  }

  /// Whether these are the right bytes, or why there are none.
  int32_t get(uint64_t number, uint32_t timeout_ms = patience_ms) {
    auto bytes = page_bytes(page_size);
    const auto code = get(number, bytes, timeout_ms);
    if (code == HC_OK) {
      EXPECT_EQ(bytes, bytes_of(number));
    }
    return code;
  }

  template <class Call>
  hc_completion keys(Call call, const std::vector<hc_key>& keys,
                     std::vector<int32_t>* codes = nullptr, uint32_t flags = 0) {
    auto how = call_for();
    how.flags = flags;
    if (codes != nullptr) {
      codes->assign(keys.size(), -1);
      how.codes = codes->data();
    }
    auto ticket = hc_ticket{0};
    auto error = hc_error{};
    EXPECT_EQ(call(client_, keys.data(), keys.size(), &how, &ticket, &error), HC_OK) << error.text;
    return wait(ticket);
  }

  hc_node_state node() {
    auto state = hc_node_state{};
    state.size = sizeof(state);
    auto error = hc_error{};
    EXPECT_EQ(hc_node_status(client_, patience_ms, &state, &error), HC_OK) << error.text;
    return state;
  }

  hc_counters counters() const {
    auto counters = hc_counters{};
    counters.size = sizeof(counters);
    EXPECT_EQ(hc_stats(client_, &counters), HC_OK);
    return counters;
  }

private:
  template <class Call>
  int32_t one_page(Call call, uint64_t number, page_bytes& bytes, uint32_t timeout_ms,
                   hc_lease* lease = nullptr) {
    const auto part = hc_part{bytes.data(), bytes.size()};
    const auto page = hc_page{key_of(number), {}, &part, 1, {}};
    auto code = int32_t{-1};
    auto how = call_for(timeout_ms);
    how.codes = &code;
    how.lease = lease;
    auto ticket = hc_ticket{0};
    auto error = hc_error{};
    EXPECT_EQ(call(client_, &page, 1, &how, &ticket, &error), HC_OK) << error.text;
    wait(ticket);
    return code;
  }

  hc_client* client_ = nullptr;
};

} // namespace hicache::test
