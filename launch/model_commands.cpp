#include "launch/model_commands.hpp"

#include "base/try.hpp"
#include "base/units.hpp"
#include "identity/model_folder.hpp"
#include "launch/program.hpp"
#include "launch/status_line.hpp"

#include <cstdio>

namespace hicache {

model_commands::model_commands(CLI::App& app) {
  auto* model_id
    = app.add_subcommand("model-id", "prints an id of a model's weights, for --model-id");
  model_id
    ->add_option("DIR", folder_,
                 "the model's folder, with config.json and *.safetensors, as engines load it")
    ->required();
}

result<int> model_commands::perform() const {
  auto line = status_line{};
  const auto id = HICACHE_TRY(read_model_id(folder_, [&](uint64_t done, uint64_t total) {
    line.show([&] { return "read " + format_bytes(done) + " of " + format_bytes(total); });
  }));
  std::printf("%s\n", id.c_str());
  return exit_ok;
}

} // namespace hicache
