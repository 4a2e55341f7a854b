#include "transport/host_reductions.hpp"

#include "base/check.hpp"
#include "base/system_message.hpp"
#include "transport/rank_limits.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

namespace hicache {

namespace {

using shared_number = std::atomic<uint64_t>;
static_assert(shared_number::is_always_lock_free, "other processes use it, too");

constexpr auto cache_line = size_t{64};

/// Precedes the slots; one page holds the heads of all channels.
constexpr auto heads_bytes = size_t{4096};

constexpr auto slot_bytes = cache_line + rank_limits::values * sizeof(int64_t);

constexpr size_t bytes_for(uint32_t ranks) {
  return heads_bytes + (size_t{ranks} + 1) * reduction_channel_count * slot_bytes;
}

tl::unexpected<error> system_error(const std::string& what) {
  return fail(ec::io_failure, what + ": " + system_message(errno));
}

} // namespace

// -- reduction_offer ----------------------------------------------------------

void reduction_offer::merge(uint32_t their_shortest, uint32_t their_longest,
                            std::span<const int64_t> theirs) {
  shortest = std::min(shortest, their_shortest);
  longest = std::max(longest, their_longest);
  if (shortest != longest || values.size() != theirs.size())
    return values.clear();
  std::ranges::transform(values, theirs, values.begin(), std::ranges::min);
}

result<std::vector<int64_t>> reduction_offer::outcome() && {
  if (shortest != longest)
    return fail(ec::configuration_mismatch, "ranks offered " + std::to_string(shortest) + " and "
                                              + std::to_string(longest)
                                              + " values to one reduction");
  if (longest > rank_limits::values)
    return fail(ec::limit_reached, "a reduction of " + std::to_string(longest)
                                     + " values was asked for; there may be "
                                     + std::to_string(rank_limits::values));
  return std::move(values);
}

// -- layout -------------------------------------------------------------------

/// Starts as zeros, since the kernel zeroes the memory.
struct host_reductions::channel_head {
  /// Ranks that entered, summed over all reductions.
  alignas(cache_line) shared_number entered;
  /// Number of the last published reduction.
  alignas(cache_line) shared_number published;
};

struct host_reductions::slot {
  /// Number of the last reduction that the rank entered.
  shared_number number;
  uint32_t shortest;
  uint32_t longest;

  int64_t* values() {
    return reinterpret_cast<int64_t*>(reinterpret_cast<std::byte*>(this) + cache_line);
  }

  size_t size() const {
    return shortest == longest && longest <= rank_limits::values ? longest : 0;
  }

  std::span<const int64_t> all() { return {values(), size()}; }

  void write(uint32_t from, uint32_t to, std::span<const int64_t> what) {
    shortest = from;
    longest = to;
    std::copy_n(what.begin(), size(), values());
  }

  reduction_offer read() {
    const auto found = all();
    return {shortest, longest, {found.begin(), found.end()}};
  }
};

host_reductions::channel_head& host_reductions::head(reduction_channel channel) const {
  static_assert(sizeof(channel_head) * reduction_channel_count <= heads_bytes);
  return reinterpret_cast<channel_head*>(memory_.data())[static_cast<size_t>(channel)];
}

host_reductions::slot& host_reductions::slot_at(reduction_channel channel, uint32_t index) const {
  static_assert(sizeof(slot) <= cache_line);
  const auto at = size_t{index} * reduction_channel_count + static_cast<size_t>(channel);
  return *reinterpret_cast<slot*>(memory_.data() + heads_bytes + at * slot_bytes);
}

// -- memory -------------------------------------------------------------------

result<host_reductions> host_reductions::create(uint32_t ranks) {
  HICACHE_CHECK(ranks > 0 && ranks <= rank_limits::ranks);
  auto fd = unique_fd{::memfd_create("hicache-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  const auto bytes = bytes_for(ranks);
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0
      || ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return system_error("cannot make memory to share with other ranks");
  return map(std::move(fd), bytes);
}

result<host_reductions> host_reductions::attach(const rank_process& owner, int fd, uint32_t ranks) {
  const auto path = "/proc/" + std::to_string(owner.pid) + "/fd/" + std::to_string(fd);
  auto opened = unique_fd{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (!opened)
    return system_error("cannot open the memory of process " + std::to_string(owner.pid)
                        + "; ranks on one host run as the same user");
  const auto bytes = bytes_for(ranks);
  struct stat status = {};
  const auto seals = ::fcntl(opened.get(), F_GET_SEALS);
  if (::fstat(opened.get(), &status) != 0 || static_cast<size_t>(status.st_size) != bytes
      || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail(ec::io_failure, "process " + std::to_string(owner.pid)
                                  + " shares memory of another form; expected a rank of the same "
                                    "version of hicache");
  auto mapped = map(std::move(opened), bytes);
  if (mapped)
    mapped->fd_ = {};
  return mapped;
}

result<host_reductions> host_reductions::map(unique_fd fd, size_t bytes) {
  auto memory = unique_mapping::create(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (!memory)
    return system_error("cannot map the memory that ranks share");
  return host_reductions{std::move(fd), std::move(memory)};
}

result<void> host_reductions::reserve(uint32_t ranks) {
  HICACHE_CHECK(fd_);
  auto code = 0;
  do
    code = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes_for(ranks)));
  while (code == EINTR);
  if (code != 0)
    return fail(ec::io_failure,
                "cannot take memory to share with other ranks: " + system_message(code));
  return {};
}

// -- reductions ---------------------------------------------------------------

std::optional<reduction_offer> host_reductions::enter(reduction_channel channel, uint64_t number,
                                                      uint32_t place, uint32_t ranks,
                                                      std::span<const int64_t> values) {
  auto& mine = slot_at(channel, 1 + place);
  const auto length = static_cast<uint32_t>(values.size());
  mine.write(length, length, values);
  mine.number.store(number, std::memory_order_release);
  const auto entered = head(channel).entered.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (entered != number * ranks)
    return std::nullopt;
  auto offer = slot_at(channel, 1).read();
  for (uint32_t other = 1; other < ranks; ++other) {
    auto& theirs = slot_at(channel, 1 + other);
    offer.merge(theirs.shortest, theirs.longest, theirs.all());
  }
  return offer;
}

bool host_reductions::has_entered(reduction_channel channel, uint64_t number,
                                  uint32_t place) const {
  return slot_at(channel, 1 + place).number.load(std::memory_order_acquire) >= number;
}

void host_reductions::publish(reduction_channel channel, uint64_t number,
                              const reduction_offer& minima) {
  slot_at(channel, 0).write(minima.shortest, minima.longest, minima.values);
  head(channel).published.store(number, std::memory_order_release);
}

std::optional<reduction_offer> host_reductions::published(reduction_channel channel,
                                                          uint64_t number) const {
  if (head(channel).published.load(std::memory_order_acquire) != number)
    return std::nullopt;
  return slot_at(channel, 0).read();
}

} // namespace hicache
