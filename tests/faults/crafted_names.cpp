// A member that stores pages under names which nobody gets by chance, or one that reads them from
// the others; system.chaos runs both. Says "stored N" and waits for SIGTERM, or "read N".

#include "cache/hash/page_hash.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/cluster_member.hpp"

#include <caf/actor_system.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <set>
#include <string_view>
#include <vector>

namespace {

using namespace hicache;

constexpr auto object_bytes = size_t{4096};

/// Bytes that meant something to a protocol between processes, or to the inside of a hash table,
/// wherever a name has room for them, among zeros and among ones.
std::vector<page_key> crafted_names() {
  using namespace std::literals;
  constexpr auto marks
    = std::array{"@<>"sv,       "+@exit"sv,           "+@message"sv,        "+@strmap"sv,
                 "@<>+@exit"sv, "\0\0\0\0\0\0\0\1"sv, "\x80\x80\x80\x80"sv, "\n\r\x1b[2J"sv};
  auto names = std::set<page_key>{};
  for (const auto fill : {uint8_t{0}, uint8_t{0xFF}}) {
    auto name = page_key{};
    name.bytes.fill(fill);
    names.insert(name);
    for (const auto mark : marks)
      for (auto at = size_t{0}; at + mark.size() <= name.bytes.size(); ++at) {
        auto marked = name;
        std::ranges::copy(mark, marked.bytes.begin() + static_cast<ptrdiff_t>(at));
        names.insert(marked);
      }
  }
  return {names.begin(), names.end()};
}

std::vector<std::byte> object_of(const page_key& name) {
  auto bytes = std::vector<std::byte>(object_bytes);
  for (auto i = size_t{0}; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(name.bytes[i % name.bytes.size()] + i / name.bytes.size());
  return bytes;
}

int store(blocking_store& to, const stop_signal& stop) {
  const auto names = crafted_names();
  auto objects = std::vector<std::vector<std::byte>>{};
  auto pages = std::vector<page_write>{};
  for (const auto& name : names) {
    objects.push_back(object_of(name));
    pages.push_back({name, {}, {objects.back()}, 0});
  }
  for (const auto& stored : to.set(pages, monotonic_clock{}.now() + std::chrono::seconds{10}))
    if (!stored) {
      std::fprintf(stderr, "%s\n", to_string(stored.error()).c_str());
      return exit_failed;
    }
  std::printf("stored %zu\n", names.size());
  std::fflush(stdout);
  while (!stop.wait_for(std::chrono::hours{1})) {
  }
  return exit_ok;
}

int read(blocking_store& from) {
  const auto names = crafted_names();
  auto objects = std::vector<std::vector<std::byte>>(names.size());
  auto pages = std::vector<page_read>{};
  for (auto i = size_t{0}; i < names.size(); ++i) {
    objects[i].resize(object_bytes);
    pages.push_back({names[i], {objects[i]}});
  }
  const auto answers = from.get(pages, monotonic_clock{}.now() + std::chrono::seconds{10});
  for (auto i = size_t{0}; i < names.size(); ++i)
    if (!answers[i] || objects[i] != object_of(names[i])) {
      std::fprintf(stderr, "%s: %s\n", to_string(names[i]).c_str(),
                   answers[i] ? "other bytes" : to_string(answers[i].error()).c_str());
      return exit_failed;
    }
  std::printf("read %zu\n", names.size());
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  const auto clock = monotonic_clock{};
  auto options = cluster_member_options{};
  options.object_bytes = object_bytes;
  options.fingerprint = fingerprint_of("crafted names");
  options.listen_host = "127.0.0.1";
  options.clock = &clock;
  auto reads = false;
  auto remote = false;
  auto app = CLI::App{"Stores pages under crafted names, or reads them.", "crafted-names"};
  app.add_option("--index", options.index)->required();
  app.add_option("--host", options.host);
  app.add_option("--listen-host", options.listen_host);
  app.add_flag("--read", reads);
  app.add_flag("--remote", remote);
  return run_program(app, argc, argv, [&]() -> result<int> {
    start_logging("info", 0, 1);
    options.segment_bytes = reads ? 0 : size_t{16} << 20;
    options.path = remote ? read_path::remote : read_path::automatic;
    auto config = system_config{};
    auto system = caf::actor_system{config};
    auto member = cluster_member::join(system, std::move(options));
    if (!member)
      return tl::unexpected{member.error()};
    const auto backend = (*member)->open();
    return reads ? read(*backend) : store(*backend, stop);
  });
}
