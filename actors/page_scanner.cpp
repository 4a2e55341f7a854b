#include "actors/page_scanner.hpp"

#include "backends/cluster/lasting_memory.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/units.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace hicache {

namespace {

/// How often a long scan logs its progress.
constexpr auto news_pause = std::chrono::seconds{5};

} // namespace

void page_scanner_state::tick() {
  auto part = scan_pages(options.memory, next, options.seed,
                         {limits::scanned_bytes, limits::scanned_pages});
  const auto end = part.end;
  self->request(options.segment, caf::infinite, atom::adopt_v, std::move(part))
    .then([this, end](atom::ok) { pass(end); },
          [this](const caf::error& err) {
            spdlog::error("pages of the memory file are not offered again: {}",
                          to_string(from_caf(err)));
            self->quit();
          });
}

void page_scanner_state::pass(uint64_t end) {
  next = end;
  const auto now = options.clock->now();
  if (next == options.memory.size()) {
    spdlog::info("memory file: {} pages are offered again, {} did not verify; looked at {} in "
                 "{:.1f} s",
                 options.figures->kept.load(), options.figures->dropped.load(), format_bytes(next),
                 std::chrono::duration<double>(now - started).count());
    return self->quit();
  }
  if (now - last_said >= news_pause) {
    last_said = now;
    spdlog::info("memory file: looked at {} of {}; {} pages are offered again so far",
                 format_bytes(next), format_bytes(options.memory.size()),
                 options.figures->kept.load());
  }
  self->send(self, atom::tick_v);
}

// -- actor --------------------------------------------------------------------

page_scanner_actor::behavior_type
page_scanner(page_scanner_actor::stateful_pointer<page_scanner_state> self,
             page_scanner_options options) {
  HICACHE_CHECK(!options.memory.empty() && options.segment && options.figures != nullptr
                && options.clock != nullptr);
  auto& state = self->state;
  state.started = state.last_said = options.clock->now();
  state.options = std::move(options);
  self->send(self, atom::tick_v);
  return {[self](atom::tick) { self->state.tick(); }};
}

} // namespace hicache
