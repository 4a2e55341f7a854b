#include "gpu/host_memory.hpp"

#include "base/check.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "gpu/available_memory.hpp"
#include "hicache/clock.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

namespace hicache {

namespace {

using namespace literals;

// -- available memory ---------------------------------------------------------

constexpr auto most_kept_back = 10_GiB;

/// Bytes left free for the rest of the machine.
uint64_t kept_back(uint64_t available) noexcept {
  return std::min<uint64_t>(most_kept_back, available / 2);
}

tl::unexpected<error> allocation_failure(uint64_t bytes, const std::string& reason) {
  return fail(ec::io_failure,
              "cannot allocate " + format_bytes(bytes) + " of host memory: " + reason);
}

// -- pages --------------------------------------------------------------------

struct page_kind {
  memory_pages pages;
  uint64_t page_bytes;
  int map_flags;
  const char* name;
};

/// In the order in which they are tried. The plain size is that of x86; elsewhere pages may be
/// larger, and rounding up to less than a page is harmless.
constexpr auto page_kinds = std::array{
  page_kind{memory_pages::gigabyte, 1_GiB, MAP_HUGETLB | MAP_HUGE_1GB, "1 GiB huge pages"},
  page_kind{memory_pages::two_megabytes, 2_MiB, MAP_HUGETLB | MAP_HUGE_2MB, "2 MiB huge pages"},
  page_kind{memory_pages::plain, 4_KiB, 0, "plain pages"},
};

/// Unused and unreserved bytes of the kernel's pool of huge pages.
uint64_t free_in_pool(const page_kind& kind) {
  const auto folder
    = "/sys/kernel/mm/hugepages/hugepages-" + std::to_string(kind.page_bytes / 1_KiB) + "kB/";
  auto free_pages = uint64_t{0};
  auto reserved = uint64_t{0};
  if (std::ifstream{folder + "free_hugepages"} >> free_pages
      && std::ifstream{folder + "resv_hugepages"} >> reserved)
    return (free_pages - std::min(reserved, free_pages)) * kind.page_bytes;
  return 0;
}

/// Requests a NUMA node for untouched memory.
bool prefer_node(std::span<std::byte> memory, int node) {
  constexpr auto word_bits = std::numeric_limits<unsigned long>::digits;
  // Linux's maximum number of nodes.
  auto nodes = std::array<unsigned long, 1024 / word_bits>{};
  constexpr auto node_bits = word_bits * static_cast<int>(nodes.size());
  if (node < 0 || node >= node_bits)
    return false;
  nodes.at(static_cast<size_t>(node / word_bits)) = 1UL << (node % word_bits);
  // The kernel uses one bit less than passed.
  return ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, nodes.data(),
                   node_bits + 1, 0)
         == 0;
}

// -- residency ----------------------------------------------------------------

/// Reports the progress of an allocation, rarely enough to cost nothing.
class progress_meter {
public:
  progress_meter(const std::function<void(uint64_t, uint64_t)>& report, uint64_t total)
    : report_(report), total_(total), last_time_(clock_.now()) {}

  /// @param ready May decrease when another page size is tried; decreases are not reported.
  void update(uint64_t ready) {
    if (report_ && ready > last_ready_ && ready < total_
        && clock_.now() - last_time_ >= report_interval)
      say(ready);
  }

  /// Reports the end, unless nothing was reported before.
  void finish() {
    if (last_ready_ > 0)
      say(total_);
  }

private:
  static constexpr auto report_interval = std::chrono::milliseconds{100};

  void say(uint64_t ready) {
    last_ready_ = ready;
    report_(ready, total_);
    last_time_ = clock_.now();
  }

  monotonic_clock clock_;
  const std::function<void(uint64_t, uint64_t)>& report_;
  uint64_t total_;
  uint64_t last_ready_ = 0;
  time_point last_time_;
};

/// Enough threads to saturate the memory bus of a socket when zeroing.
constexpr auto most_threads = uint64_t{8};

/// Bytes that a thread makes resident at a time: some ten milliseconds of work, at least one page.
constexpr auto chunk_bytes = 64_MiB;

/// Shared state of the threads that make one mapping resident.
struct residency {
  std::span<std::byte> memory;
  memory_pages pages;
  uint64_t chunk;
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> ready{0};
  /// The errno of a failure, which stops the work.
  std::atomic<int> failure{0};
};

/// @returns 0 or an errno.
int make_piece_resident(std::span<std::byte> piece, memory_pages pages) {
  auto code = 0;
  do
    code = ::madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  while (code == EINTR);
  // Linux before 5.14 lacks this advice. Touching has the same effect, but would kill the process
  // if a huge page is unavailable after all (e.g. because of a cpuset).
  if (code != EINVAL || pages != memory_pages::plain)
    return code;
  for (auto at = size_t{0}; at < piece.size(); at += 4_KiB)
    *static_cast<volatile std::byte*>(&piece[at]) = std::byte{0};
  return 0;
}

template <class AfterChunk>
void work_on(residency& work, AfterChunk after_chunk) {
  while (work.failure == 0) {
    const auto begin = work.next.fetch_add(work.chunk);
    if (begin >= work.memory.size())
      return;
    const auto piece
      = work.memory.subspan(begin, std::min<uint64_t>(work.chunk, work.memory.size() - begin));
    if (const auto code = make_piece_resident(piece, work.pages); code != 0) {
      work.failure = code;
      return;
    }
    after_chunk(work.ready += piece.size());
  }
}

/// @returns 0 or an errno.
int make_resident(std::span<std::byte> memory, const page_kind& kind, progress_meter& meter) {
  auto work = residency{memory, kind.pages, std::max<uint64_t>(chunk_bytes, kind.page_bytes)};
  const auto chunks = (memory.size() + work.chunk - 1) / work.chunk;
  const auto threads
    = std::min({uint64_t{std::thread::hardware_concurrency()}, most_threads, uint64_t{chunks}});
  {
    auto helpers = std::vector<std::jthread>{};
    try {
      for (auto i = uint64_t{1}; i < threads; ++i)
        helpers.emplace_back([&work] { work_on(work, [](uint64_t) {}); });
    } catch (const std::system_error&) {
      // Out of threads: the existing ones, at least this one, do the work.
    }
    work_on(work, [&meter](uint64_t ready) { meter.update(ready); });
  }
  return work.failure;
}

} // namespace

// -- budget -------------------------------------------------------------------

uint64_t host_memory_budget(uint64_t available, uint32_t ranks_on_host) noexcept {
  HICACHE_CHECK(ranks_on_host > 0);
  return (available - kept_back(available)) / ranks_on_host;
}

result<void> check_memory_available(uint64_t bytes, uint32_t ranks_on_host) {
  const auto available = available_memory();
  if (!available)
    return {};
  const auto budget = host_memory_budget(*available, ranks_on_host);
  if (bytes <= budget)
    return {};
  const auto shared = ranks_on_host == 1
                        ? std::string{}
                        : ", shared by " + std::to_string(ranks_on_host) + " ranks";
  return allocation_failure(bytes, format_bytes(*available) + " are available, less "
                                     + format_bytes(kept_back(*available))
                                     + " for the rest of the machine" + shared + ", leaves "
                                     + format_bytes(budget) + (ranks_on_host == 1 ? "" : " each"));
}

// -- host_mapping -------------------------------------------------------------

result<host_mapping> host_mapping::create(uint64_t bytes, std::optional<int> numa_node,
                                          const host_memory_options& options) {
  HICACHE_CHECK(bytes > 0);
  const auto checked = check_memory_available(bytes, options.ranks_on_host);
  auto meter = progress_meter{options.progress, bytes};
  auto code = 0;
  for (const auto& kind : page_kinds) {
    const auto huge = kind.pages != memory_pages::plain;
    if (huge && bytes < kind.page_bytes)
      continue;
    // The huge page pools do not count as available. Plain pages, and huge pages beyond the pool
    // where the administrator allows them, do.
    if (!checked && (!huge || free_in_pool(kind) < bytes))
      continue;
    const auto mapped = (bytes + kind.page_bytes - 1) / kind.page_bytes * kind.page_bytes;
    auto memory = unique_mapping::create(mapped, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | kind.map_flags);
    code = memory ? 0 : errno;
    if (code != 0)
      continue;
    const auto whole = memory.bytes();
    auto mapping = host_mapping{std::move(memory), bytes, {}, kind.pages};
    // Fewer page faults and TLB misses; kernels without transparent huge pages refuse.
    if (!huge)
      static_cast<void>(::madvise(whole.data(), mapped, MADV_HUGEPAGE));
    if (numa_node && prefer_node(whole, *numa_node))
      mapping.node_ = numa_node;
    code = make_resident(whole, kind, meter);
    if (code != 0)
      continue;
    meter.finish();
    return mapping;
  }
  if (!checked)
    return tl::unexpected{checked.error()};
  return allocation_failure(bytes, system_message(code));
}

result<host_mapping> host_mapping::adopt(std::span<std::byte> memory, std::optional<int> numa_node,
                                         const host_memory_options& options) {
  HICACHE_CHECK(!memory.empty());
  HICACHE_TRY(check_memory_available(memory.size(), options.ranks_on_host));
  auto mapping = host_mapping{{}, 0, memory, memory_pages::plain};
  static_cast<void>(::madvise(memory.data(), memory.size(), MADV_HUGEPAGE));
  if (numa_node && prefer_node(memory, *numa_node))
    mapping.node_ = numa_node;
  auto meter = progress_meter{options.progress, memory.size()};
  if (const auto code = make_resident(memory, page_kinds.back(), meter); code != 0)
    return allocation_failure(memory.size(), system_message(code));
  meter.finish();
  return mapping;
}

std::string host_mapping::description() const {
  const auto* kind = std::ranges::find(page_kinds, pages_, &page_kind::pages);
  const auto name = std::string{memory_ ? "" : "shared "} + kind->name;
  return node_ ? name + " on NUMA node " + std::to_string(*node_) : name;
}

// -- memories -----------------------------------------------------------------

result<void> mapped_memory::write(uint64_t offset, std::span<const std::byte> bytes) {
  HICACHE_CHECK(offset <= size() && bytes.size() <= size() - offset);
  std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<ptrdiff_t>(offset));
  return {};
}

result<void> mapped_memory::read(uint64_t offset, std::span<std::byte> bytes) const {
  HICACHE_CHECK(offset <= size() && bytes.size() <= size() - offset);
  std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), bytes.size(), bytes.begin());
  return {};
}

namespace {

class host_pool_memory final : public mapped_memory {
public:
  explicit host_pool_memory(host_mapping mapping)
    : mapped_memory(mapping.bytes()), mapping_(std::move(mapping)) {}

  std::string description() const override { return mapping_.description(); }

  result<std::string> share() const override {
    return fail(ec::unsupported,
                "L2 memory cannot be shared: it is private to the process that allocated it");
  }

private:
  host_mapping mapping_;
};

std::unique_ptr<device_memory> as_device_memory(host_mapping&& mapping) {
  return std::make_unique<host_pool_memory>(std::move(mapping));
}

// -- sharing ------------------------------------------------------------------

/// Identifies the shared memory of another process.
struct memfd_name {
  uint32_t process = 0;
  uint32_t fd = 0;
  uint64_t bytes = 0;
};

std::string to_text(const memfd_name& name) {
  return "memfd " + std::to_string(name.process) + " " + std::to_string(name.fd) + " "
         + std::to_string(name.bytes);
}

std::optional<memfd_name> parse_memfd_name(std::string_view text) {
  auto rest = text;
  const auto take = [&rest](std::string_view prefix, auto& number) {
    if (!rest.starts_with(prefix))
      return false;
    rest.remove_prefix(prefix.size());
    const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return status == std::errc{};
  };
  auto name = memfd_name{};
  if (!take("memfd ", name.process) || !take(" ", name.fd) || !take(" ", name.bytes))
    return std::nullopt;
  // Only the output of share(): no leading zeroes, nothing after it.
  if (name.process == 0 || name.bytes == 0 || to_text(name) != text)
    return std::nullopt;
  return name;
}

/// A mapped memfd, in the process that made it and in those that opened it.
class shared_memfd final : public mapped_memory {
public:
  /// @param fd Kept open so that others can open it; empty for opened memory.
  shared_memfd(unique_mapping memory, unique_fd fd)
    : mapped_memory(memory.bytes()), memory_(std::move(memory)), fd_(std::move(fd)) {}

  std::string description() const override {
    return fd_ ? "plain pages, can be shared" : "plain pages of another process";
  }

  result<std::string> share() const override {
    if (!fd_)
      return fail(ec::unsupported,
                  "memory of another process cannot be shared on; ask the process that owns it");
    return to_text({static_cast<uint32_t>(::getpid()), static_cast<uint32_t>(fd_.get()), size()});
  }

private:
  unique_mapping memory_;
  unique_fd fd_;
};

} // namespace

result<std::unique_ptr<device_memory>> allocate_host_memory(uint64_t bytes,
                                                            const host_memory_options& options) {
  return host_mapping::create(bytes, std::nullopt, options).map(as_device_memory);
}

result<std::unique_ptr<device_memory>> adopt_host_memory(std::span<std::byte> memory,
                                                         const host_memory_options& options) {
  return host_mapping::adopt(memory, std::nullopt, options).map(as_device_memory);
}

result<std::unique_ptr<device_memory>> allocate_shared_memory(uint64_t bytes) {
  HICACHE_CHECK(bytes > 0);
  HICACHE_TRY(check_memory_available(bytes, 1));
  const auto failed = [bytes](const char* call, int code) {
    return allocation_failure(bytes, std::string{call} + ": " + system_message(code));
  };
  auto fd = unique_fd{::memfd_create("hicache-l1", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd)
    return failed("memfd_create", errno);
  const auto length = static_cast<off_t>(bytes);
  if (::ftruncate(fd.get(), length) != 0)
    return failed("ftruncate", errno);
  auto code = 0;
  do
    code = ::posix_fallocate(fd.get(), 0, length);
  while (code == EINTR);
  if (code != 0)
    return failed("posix_fallocate", code);
  // Fixes the size, which peers rely on, and prevents seals against writing.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed("F_ADD_SEALS", errno);
  auto mapped = unique_mapping::create(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (!mapped)
    return failed("mmap", errno);
  const auto whole = mapped.bytes();
  auto memory = std::make_unique<shared_memfd>(std::move(mapped), std::move(fd));
  // The pages are allocated, but the kernel would zero and map each on first use.
  const auto silent = host_memory_options{};
  auto meter = progress_meter{silent.progress, bytes};
  if (code = make_resident(whole, page_kinds.back(), meter); code != 0)
    return failed("madvise", code);
  return memory;
}

result<std::unique_ptr<device_memory>> open_shared_memory(std::string_view shared) {
  const auto name = parse_memfd_name(shared);
  if (!name)
    return fail(ec::invalid_argument, "'" + std::string{shared}
                                        + "' does not name shared host memory; expected 'memfd "
                                          "PROCESS DESCRIPTOR BYTES'");
  const auto failed = [&name](const std::string& reason) {
    return fail(ec::io_failure, "cannot open the memory '" + to_text(*name) + "': " + reason);
  };
  const auto path = "/proc/" + std::to_string(name->process) + "/fd/" + std::to_string(name->fd);
  // The descriptor may have been reused for anything; opening a pipe must not block.
  const auto fd = unique_fd{::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (!fd)
    return failed(path + ": " + system_message(errno));
  // Only a memfd can have this seal. Without it, reading could raise SIGBUS.
  const auto seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return failed(path + " is not a memfd that is sealed against shrinking");
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0)
    return failed("fstat: " + system_message(errno));
  if (static_cast<uint64_t>(status.st_size) != name->bytes)
    return failed(path + " has " + std::to_string(status.st_size) + " bytes");
  auto memory = unique_mapping::create(name->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (!memory)
    return failed("mmap: " + system_message(errno));
  return std::make_unique<shared_memfd>(std::move(memory), unique_fd{});
}

} // namespace hicache
