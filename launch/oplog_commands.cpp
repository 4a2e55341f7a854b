#include "launch/oplog_commands.hpp"

#include "base/about.hpp"
#include "base/try.hpp"
#include "cache/oplog/op_log.hpp"
#include "cache/oplog/op_script.hpp"
#include "launch/program.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <string_view>

namespace hicache {

namespace {

/// Reads a file line by line and counts the lines.
class line_reader {
public:
  explicit line_reader(std::string name) : name_(std::move(name)) {
    if (name_ != "-")
      file_.open(name_);
  }

  result<void> check() const {
    if (name_ != "-" && !file_.is_open())
      return fail(ec::invalid_argument, "cannot read the file " + name_);
    return {};
  }

  /// @returns the next line, or nothing at the end
  std::optional<std::string> next() {
    auto line = std::string{};
    if (!std::getline(name_ == "-" ? std::cin : file_, line))
      return std::nullopt;
    ++number_;
    return line;
  }

  uint64_t number() const noexcept { return number_; }

  /// The last line as compilers name it: "FILE:3".
  std::string place() const { return name_ + ":" + std::to_string(number_); }

private:
  std::string name_;
  std::ifstream file_;
  uint64_t number_ = 0;
};

result<int> run_script(const std::string& name) {
  auto lines = line_reader{name};
  HICACHE_TRY(lines.check());
  auto script = op_script{};
  while (const auto line = lines.next()) {
    if (line->find_first_not_of(" \t\r") == std::string::npos)
      continue;
    const auto answer = HICACHE_TRY(about_input(lines.place(), script.run(*line)));
    // Flushed, so that an interactive reader sees it before the next line is read.
    if (!(std::cout << answer << std::endl))
      return exit_failed; // The reader of the answers is gone.
  }
  return exit_ok;
}

result<int> replay_log(const std::string& name) {
  auto lines = line_reader{name};
  HICACHE_TRY(lines.check());
  auto player = op_log_player{};
  auto digest = uint64_t{0};
  while (const auto line = lines.next()) {
    const auto entry = HICACHE_TRY(about_input(lines.place(), parse_op_log_entry(*line)));
    const auto played = player.play(entry);
    if (!played && played.error().code == ec::ranks_diverged) {
      std::cerr << "hicachectl: " << name << ": " << played.error().detail << std::endl;
      return exit_failed;
    }
    if (!played)
      return fail(ec::invalid_argument, name + ": " + played.error().detail);
    digest = *played;
  }
  if (lines.number() == 0)
    return fail(ec::invalid_argument, name + ": the file is empty; expected an op log");
  std::cout << nlohmann::ordered_json{{"operations", lines.number() - 1},
                                      {"digest", digest_to_text(digest)}}
                 .dump()
            << std::endl;
  return exit_ok;
}

void show(std::string_view file, const std::optional<std::string>& line,
          const std::optional<op_log_entry>& entry) {
  std::cout << file << ": ";
  if (line)
    std::cout << *line << "\n  digest "
              << (entry->digest ? digest_to_text(*entry->digest) : "none");
  else
    std::cout << "ends here";
  std::cout << "\n";
}

result<int> diff_logs(const std::string& name_a, const std::string& name_b) {
  auto lines_a = line_reader{name_a};
  auto lines_b = line_reader{name_b};
  HICACHE_TRY(lines_a.check());
  HICACHE_TRY(lines_b.check());
  const auto parse = [](const std::optional<std::string>& line,
                        const line_reader& lines) -> result<std::optional<op_log_entry>> {
    if (!line)
      return std::nullopt;
    auto entry = HICACHE_TRY(about_input(lines.place(), parse_op_log_entry(*line)));
    return std::optional{std::move(entry)};
  };
  for (auto number = uint64_t{1};; ++number) {
    const auto a = lines_a.next();
    const auto b = lines_b.next();
    if (!a && !b)
      return exit_ok;
    if (a == b)
      continue;
    const auto entry_a = HICACHE_TRY(parse(a, lines_a));
    const auto entry_b = HICACHE_TRY(parse(b, lines_b));
    if (entry_a && entry_b && agree(*entry_a, *entry_b))
      continue;
    std::cout << "line " << number << " differs\n";
    show(name_a, a, entry_a);
    show(name_b, b, entry_b);
    std::cout.flush();
    return exit_failed;
  }
}

} // namespace

oplog_commands::oplog_commands(CLI::App& app) {
  auto* oplog
    = app.add_subcommand("oplog", "asks a cache how it behaves, and replays what one did");
  oplog->require_subcommand(1);
  run_
    = oplog->add_subcommand("run", "drives one cache from a script, without ranks and bytes, and "
                                   "prints an answer a line (docs/oplog.md)");
  run_
    ->add_option("script", file_,
                 "script, one JSON object a line; - reads standard input and answers each line "
                 "before it reads the next")
    ->required()
    ->type_name("FILE.jsonl|-");
  replay_ = oplog->add_subcommand("replay", "replays what a rank recorded with --record-ops and "
                                            "checks that it comes to the same state");
  replay_->add_option("log", file_, "op log of one rank")->required()->type_name("FILE");
  auto* diff = oplog->add_subcommand("diff", "finds the first entry in which the op logs of two "
                                             "ranks differ; exit code 1 if there is one");
  diff->add_option("a", file_, "op log of one rank")->required()->type_name("A");
  diff->add_option("b", other_file_, "op log of another rank")->required()->type_name("B");
}

result<int> oplog_commands::perform() const {
  if (run_->parsed())
    return run_script(file_);
  if (replay_->parsed())
    return replay_log(file_);
  return diff_logs(file_, other_file_);
}

} // namespace hicache
