#include "actors/op_recorder.hpp"

#include "base/check.hpp"

#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

caf::result<atom::ok> op_recorder_state::record(const op_log_batch_ptr& batch) {
  auto lines = std::string{};
  for (const auto& entry : batch->entries)
    lines += to_line(entry) + "\n";
  if (auto written = write(lines); !written)
    return to_caf(written.error());
  return atom::ok_v;
}

// -- internal steps -----------------------------------------------------------

result<void> op_recorder_state::write(const std::string& lines) {
  if (file && file->write(lines.data(), static_cast<std::streamsize>(lines.size())).flush())
    return {};
  if (std::exchange(file, nullptr))
    spdlog::error("the op log ends here: cannot write the file {}", file_name);
  return fail(ec::io_failure, "cannot write the file " + file_name);
}

// -- actor --------------------------------------------------------------------

op_recorder_actor::behavior_type
op_recorder(op_recorder_actor::stateful_pointer<op_recorder_state> self,
            const std::string& file_name, std::unique_ptr<std::ostream> file,
            const tree_options& options) {
  HICACHE_CHECK(file != nullptr);
  self->state.file_name = file_name;
  self->state.file = std::move(file);
  // A failure is logged; the sender learns of it with the first batch.
  static_cast<void>(self->state.write(to_line({options, {}}) + "\n"));
  // An exit message overtakes others: quit only after writing those received before it.
  self->set_exit_handler([self](const caf::exit_msg&) { self->send(self, atom::done_v); });
  return {
    [self](atom::record, const op_log_batch_ptr& batch) { return self->state.record(batch); },
    [self](atom::done) { self->quit(); },
  };
}

} // namespace hicache
