// store_consumer FOLDER: keeps an object in a store, and finds it when the store is opened again.

#include <hicache/store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr auto timeout = std::chrono::seconds{10};

hicache::store_options options_of(const std::string& folder) {
  auto options = hicache::store_options{};
  options.backend = "tiered";
  options.extra_config
    = R"({"tiers": [{"backend": "memory"}, {"backend": "file", "path": ")" + folder + R"("}]})";
  options.identity = "a model and its settings";
  return options;
}

bool run(const std::string& folder) {
  auto key = hicache::page_key{};
  key.bytes.fill(7);
  const auto bytes = std::vector<std::byte>(4096, std::byte{42});
  {
    const auto store = hicache::store::open(options_of(folder));
    if (!store || !(*store)->write({{key, {}, {bytes}}}, timeout).front())
      return false;
  }
  const auto store = hicache::store::open(options_of(folder));
  auto back = std::vector<std::byte>(bytes.size());
  return store && (*store)->lookup({key}, timeout).front()
         && (*store)->read({{key, {back}}}, timeout).front() && back == bytes
         && (*store)->health().ok;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !run(argv[1])) {
    std::puts("the object did not come back");
    return 1;
  }
  return 0;
}
