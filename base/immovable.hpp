#pragma once

namespace hicache {

/// Base of classes whose objects are neither copied nor moved.
class immovable {
public:
  immovable(const immovable&) = delete;

  immovable& operator=(const immovable&) = delete;

protected:
  immovable() = default;

  ~immovable() = default;
};

} // namespace hicache
