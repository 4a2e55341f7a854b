#include "hicache/system_config.hpp"

#include "hicache/caf_error.hpp"

#include <caf/atom.hpp>
#include <caf/message.hpp>

namespace hicache {

system_config::system_config() {
  // The overload of add_error_category that takes the enum alone does not compile in CAF 0.17.6.
  add_error_category(caf::atom("hicache"),
                     [](uint8_t code, caf::atom_value category, const caf::message& context) {
                       return hicache::to_string(from_caf(caf::error{code, category, context}));
                     });
  // A rank shares its cores with the engine and with the other ranks of the machine, and its actors
  // never block: one thread runs them all, and no message wakes another thread. With two threads a
  // step took twice as long (bench/run.sh step).
  with_threads(1);
  // CAF's default policy, work stealing, lets idle workers sleep for up to 10 ms; with work sharing
  // a message wakes one.
  set("scheduler.policy", caf::atom("sharing"));
}

system_config& system_config::with_threads(size_t count) {
  set("scheduler.max-threads", count);
  return *this;
}

} // namespace hicache
