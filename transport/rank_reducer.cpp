#include "hicache/rank_reducer.hpp"

namespace hicache {

rank_reducer::~rank_reducer() = default;

} // namespace hicache
