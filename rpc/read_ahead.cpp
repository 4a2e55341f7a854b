#include "rpc/read_ahead.hpp"

#include <algorithm>

namespace hicache {

size_t read_ahead::take(kj::byte* to, size_t most) {
  const auto size = std::min(most, end_ - begin_);
  std::copy_n(bytes_.data() + begin_, size, to);
  begin_ += size;
  return size;
}

kj::Promise<size_t> read_ahead::tryRead(void* to, size_t least, size_t most) {
  auto* next = static_cast<kj::byte*>(to);
  const auto taken = take(next, most);
  if (taken >= least)
    return taken;
  if (most - taken >= bytes_.size())
    return inner_.tryRead(next + taken, least - taken, most - taken).then([taken](size_t size) {
      return taken + size;
    });
  return inner_.tryRead(bytes_.data(), least - taken, bytes_.size()).then([=, this](size_t size) {
    begin_ = 0;
    end_ = size;
    return taken + take(next + taken, most - taken);
  });
}

} // namespace hicache
