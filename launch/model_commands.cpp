#include "launch/model_commands.hpp"

#include "base/units.hpp"
#include "launch/model_folder.hpp"
#include "launch/program.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace hicache {

namespace {

/// One redrawn line on a terminal, occasional plain lines otherwise.
class reading_line {
public:
  ~reading_line() {
    if (drawn_ && terminal_)
      std::fputc('\n', stderr);
  }

  void show(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_)
      return;
    next_ = now + pause();
    std::fprintf(stderr, terminal_ ? "\rread %s of %s\033[K" : "read %s of %s\n",
                 format_bytes(done).c_str(), format_bytes(total).c_str());
    std::fflush(stderr);
    drawn_ = true;
  }

private:
  std::chrono::milliseconds pause() const {
    return terminal_ ? std::chrono::milliseconds{200} : std::chrono::seconds{10};
  }

  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + pause();
};

} // namespace

model_commands::model_commands(CLI::App& app)
  : model_id_(app.add_subcommand("model-id", "prints an id of a model's weights, for --model-id")) {
  model_id_
    ->add_option("DIR", folder_,
                 "the model's folder, with config.json and *.safetensors, as engines load it")
    ->required();
  model_id_->add_flag("--full", full_,
                      "read all bytes of the weights instead of a sample of each tensor");
}

bool model_commands::chosen() const {
  return model_id_->parsed();
}

result<int> model_commands::perform() const {
  auto line = reading_line{};
  const auto id = read_model_id(folder_, full_ ? weights_read::all : weights_read::sample,
                                [&](uint64_t done, uint64_t total) { line.show(done, total); });
  if (!id)
    return tl::unexpected{id.error()};
  std::printf("%s\n", id->c_str());
  return exit_ok;
}

} // namespace hicache
