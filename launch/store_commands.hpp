#pragma once

#include "base/immovable.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace hicache {

/// The commands `hicachectl store`: the objects of a store, or of each tier of one, as they lie
/// there. They need no rank, and see through no codec.
class store_commands : immovable {
public:
  /// Adds the commands. `app` must not outlive this object.
  explicit store_commands(CLI::App& app);

  /// @returns the exit code, or one sentence about a bad flag or a store that cannot be used
  result<int> perform() const;

private:
  /// Where the objects are, and whose.
  struct place;

  result<place> open() const;

  result<int> list(place& where) const;
  result<int> sum(place& where) const;
  result<int> look_up(place& where) const;
  result<int> get(place& where) const;
  result<int> put(place& where) const;
  result<int> remove(place& where) const;
  result<int> verify(place& where) const;
  result<int> copy(place& from, place& to) const;
  result<place> open_folder(const place& other) const;

  CLI::App& app_;
  CLI::App* ls_;
  CLI::App* du_;
  CLI::App* exists_;
  CLI::App* get_;
  CLI::App* put_;
  CLI::App* rm_;
  CLI::App* verify_;
  CLI::App* export_;
  CLI::App* import_;
  std::string config_file_;
  std::string backend_;
  std::string extra_config_;
  uint32_t tier_ = 0;
  uint32_t rank_ = 0;
  uint32_t ranks_ = 1;
  duration timeout_ = std::chrono::seconds{10};
  bool json_ = false;
  std::vector<std::string> keys_;
  std::string key_;
  std::string file_;
};

} // namespace hicache
