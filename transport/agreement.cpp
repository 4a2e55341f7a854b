#include "hicache/agreement.hpp"

namespace hicache {

agreement::~agreement() = default;

} // namespace hicache
