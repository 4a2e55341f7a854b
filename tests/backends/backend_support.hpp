#pragma once

#include "backends/blocking_store.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

/// One-page calls and page contents for the tests of stores.
namespace hicache::test {

using page_bytes = std::vector<std::byte>;

/// A key spread over all its bytes, different for each number.
inline page_key key_of(uint64_t number) {
  auto random = std::mt19937_64{number};
  auto key = page_key{};
  for (auto& byte : key.bytes)
    byte = static_cast<uint8_t>(random());
  return key;
}

/// Bytes that belong to one key and no other.
inline page_bytes bytes_of(uint64_t number, size_t count) {
  auto random = std::mt19937_64{~number};
  auto bytes = page_bytes(count);
  for (auto& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

/// Cuts bytes into parts of these lengths; what is left is the last part.
template <class Bytes>
auto cut(Bytes& bytes, const std::vector<size_t>& lengths) {
  using byte = std::remove_pointer_t<decltype(bytes.data())>;
  auto parts = std::vector<std::span<byte>>{};
  auto rest = std::span<byte>{bytes};
  for (const auto length : lengths) {
    parts.push_back(rest.first(length));
    rest = rest.subspan(length);
  }
  parts.push_back(rest);
  return parts;
}

inline constexpr auto no_deadline = time_point::max();

inline bool has(blocking_store& store, const page_key& key) {
  return store.exists(std::vector{key}, no_deadline).at(0);
}

inline result<void> put(blocking_store& store, const page_key& key, const page_bytes& bytes) {
  return store.set(std::vector{page_write{key, {}, {bytes}}}, no_deadline).at(0);
}

inline result<page_bytes> take(blocking_store& store, const page_key& key, size_t count) {
  auto bytes = page_bytes(count);
  auto answer = store.get(std::vector{page_read{key, {bytes}}}, no_deadline).at(0);
  if (!answer)
    return tl::unexpected{answer.error()};
  return bytes;
}

inline result<void> drop(blocking_store& store, const page_key& key) {
  return store.remove(std::vector{key}, no_deadline).at(0);
}

/// The code of a failed answer, none of a good one.
template <class T>
ec code_of(const result<T>& answer) {
  return answer ? ec::none : answer.error().code;
}

/// Answers in a form that can be compared: error{} stands for a good one.
template <class T>
std::vector<error> errors_of(const std::vector<result<T>>& answers) {
  auto errors = std::vector<error>{};
  for (const auto& answer : answers)
    errors.push_back(answer ? error{} : answer.error());
  return errors;
}

} // namespace hicache::test
