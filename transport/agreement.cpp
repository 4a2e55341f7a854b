#include "transport/agreement.hpp"

namespace hicache {

agreement::~agreement() = default;

} // namespace hicache
