#include "backends/serde/bounce_pool.hpp"

#include "base/check.hpp"

#include <new>
#include <utility>

namespace hicache::serde {

namespace {

uint64_t rounded(uint64_t bytes) {
  return (bytes + bounce_pool::alignment - 1) / bounce_pool::alignment * bounce_pool::alignment;
}

} // namespace

bounce_pool::piece::piece(piece&& other) noexcept
  : pool_(std::move(other.pool_)), bytes_(std::exchange(other.bytes_, {})) {}

bounce_pool::piece& bounce_pool::piece::operator=(piece&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

bounce_pool::piece::~piece() {
  if (pool_ != nullptr)
    pool_->give_back(bytes_);
}

std::shared_ptr<bounce_pool> bounce_pool::make(uint64_t bytes) {
  const auto size = rounded(bytes);
  auto* const memory = static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}));
  return std::shared_ptr<bounce_pool>{new bounce_pool{{memory, size}}};
}

bounce_pool::~bounce_pool() {
  ::operator delete (memory_.data(), std::align_val_t{alignment});
}

void bounce_pool::request(uint64_t owner, uint64_t bytes, receiver receive) {
  HICACHE_CHECK(bytes > 0 && rounded(bytes) <= capacity());
  {
    const auto lock = std::scoped_lock{mutex_};
    queue_.push_back({owner, rounded(bytes), std::move(receive)});
  }
  serve();
}

void bounce_pool::cancel(uint64_t owner) {
  auto dropped = std::deque<waiting>{};
  {
    const auto lock = std::scoped_lock{mutex_};
    auto kept = std::deque<waiting>{};
    for (auto& each : queue_)
      (each.owner == owner ? dropped : kept).push_back(std::move(each));
    queue_ = std::move(kept);
  }
  // The first one may have been in the way of the others.
  serve();
}

void bounce_pool::serve() {
  for (;;) {
    auto lock = std::unique_lock{mutex_};
    if (queue_.empty())
      return;
    const auto bytes = queue_.front().bytes;
    const auto offset = extents_.take(bytes);
    if (!offset)
      return;
    const auto receive = std::move(queue_.front().receive);
    queue_.pop_front();
    lock.unlock();
    receive(piece{shared_from_this(), memory_.subspan(*offset, bytes)});
  }
}

void bounce_pool::give_back(std::span<std::byte> bytes) {
  {
    const auto lock = std::scoped_lock{mutex_};
    extents_.give_back(static_cast<uint64_t>(bytes.data() - memory_.data()), bytes.size());
  }
  serve();
}

uint64_t bounce_pool::free() const {
  const auto lock = std::scoped_lock{mutex_};
  return extents_.free();
}

} // namespace hicache::serde
