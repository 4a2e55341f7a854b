#include "c_abi/batch.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

namespace hicache {

namespace {

static_assert(HC_MAX_PAGES == limits::node_batch_pages);
static_assert(sizeof(hc_key) == sizeof(page_key));

tl::unexpected<error> wrong(const std::string& what) {
  return fail(ec::invalid_argument, what);
}

/// Sets the fields common to all batches.
result<batch> begin(batch::kind what, size_t count, const hc_call& call, time_point now) {
  HICACHE_TRY(check_page_count(count));
  if (call.timeout_ms == 0)
    return wrong("timeout_ms: 0; expected the time that the call may take");
  auto allowed = uint32_t{0};
  if (what == batch::kind::prefetch || what == batch::kind::pin)
    allowed |= HC_CHAIN;
  if (what == batch::kind::pin)
    allowed |= HC_IN_PLACE;
  if ((call.flags & ~allowed) != 0)
    return fail(ec::unsupported,
                "flags: " + std::to_string(call.flags & ~allowed) + " mean nothing for this call");
  if (call.lease != nullptr && what != batch::kind::get && what != batch::kind::load)
    return fail(ec::unsupported, "lease: only hc_get and hc_offload_load read from a lease");
  auto begun = batch{};
  begun.what = what;
  begun.user = call.user;
  begun.deadline = deadline_after(now, call.timeout_ms);
  begun.is_chain = (call.flags & HC_CHAIN) != 0;
  begun.in_place = (call.flags & HC_IN_PLACE) != 0;
  begun.codes = call.codes;
  return begun;
}

/// The memory of a page as spans.
template <class Byte>
result<std::vector<std::span<Byte>>> parts_of(const hc_page& page, size_t position) {
  const auto name = "page " + std::to_string(position) + ": ";
  if (std::ranges::any_of(page.reserved, [](uint64_t x) { return x != 0; }))
    return fail(ec::unsupported, name + "reserved: expected 0");
  if (page.parts == nullptr && page.part_count > 0)
    return wrong(name + "parts: NULL, though there are " + std::to_string(page.part_count));
  auto parts = std::vector<std::span<Byte>>{};
  auto bytes = uint64_t{0};
  for (const auto& part : std::span{page.parts, page.part_count}) {
    if (part.data == nullptr && part.bytes > 0)
      return wrong(name + "data: NULL, though there are " + std::to_string(part.bytes) + " bytes");
    if (part.bytes > limits::page_bytes || (bytes += part.bytes) > limits::page_bytes)
      return wrong(name + "more than " + std::to_string(limits::page_bytes) + " bytes");
    parts.push_back({static_cast<Byte*>(part.data), part.bytes});
  }
  if (bytes == 0)
    return wrong(name + "has no bytes");
  return parts;
}

} // namespace

page_key key_of(const hc_key& key) {
  auto copy = page_key{};
  std::ranges::copy(key.bytes, copy.bytes.begin());
  return copy;
}

result<void> check_page_count(size_t count) {
  if (count == 0 || count > HC_MAX_PAGES)
    return wrong("count: " + std::to_string(count) + " pages; expected 1 to "
                 + std::to_string(HC_MAX_PAGES));
  return {};
}

time_point deadline_after(time_point now, uint32_t timeout_ms) {
  return now + std::min<duration>(std::chrono::milliseconds{timeout_ms}, std::chrono::hours{1});
}

result<batch> make_batch(batch::kind what, std::span<const hc_page> pages, const hc_call& call,
                         time_point now) {
  HICACHE_CHECK(what == batch::kind::put || what == batch::kind::get);
  auto made = HICACHE_TRY(begin(what, pages.size(), call, now));
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto key = key_of(pages[i].key);
    if (what == batch::kind::put) {
      auto parts = HICACHE_TRY(parts_of<const std::byte>(pages[i], i));
      made.writes.push_back({key, key_of(pages[i].parent), std::move(parts)});
    } else {
      auto parts = HICACHE_TRY(parts_of<std::byte>(pages[i], i));
      made.reads.push_back({key, std::move(parts)});
    }
  }
  return made;
}

result<batch> make_batch(batch::kind what, std::span<const hc_key> keys, const hc_call& call,
                         time_point now) {
  auto made = HICACHE_TRY(begin(what, keys.size(), call, now));
  std::ranges::transform(keys, std::back_inserter(made.keys), key_of);
  return made;
}

hc_completion complete(const batch& done, std::span<const result<void>> outcome) {
  HICACHE_CHECK(outcome.size() == done.size());
  auto said = hc_completion{};
  said.ticket = done.ticket;
  said.user = done.user;
  for (auto i = size_t{0}; i < outcome.size(); ++i) {
    if (outcome[i]) {
      ++said.pages;
      said.prefix += said.prefix == i ? 1 : 0;
    } else if (outcome[i].error().code != ec::not_found && said.error.code == HC_OK) {
      report(outcome[i].error(), &said.error);
    }
    if (done.codes != nullptr)
      done.codes[i] = outcome[i] ? int32_t{HC_OK} : static_cast<int32_t>(outcome[i].error().code);
  }
  return said;
}

const char* text_of(const error& what) noexcept {
  return what.detail.empty() ? sentence(what.code) : what.detail.c_str();
}

int32_t report(int32_t code, const char* text, hc_error* to) noexcept {
  if (to == nullptr)
    return code;
  to->code = code;
  std::strncpy(to->text, text, sizeof(to->text) - 1);
  to->text[sizeof(to->text) - 1] = '\0';
  return code;
}

int32_t report(const error& what, hc_error* to) noexcept {
  return report(static_cast<int32_t>(what.code), what.code == ec::none ? "" : text_of(what), to);
}

} // namespace hicache
