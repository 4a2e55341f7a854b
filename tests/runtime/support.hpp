#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace hicache::test {

/// A folder of its own for each test, gone with it.
class folder_test : public ::testing::Test {
protected:
  folder_test() {
    auto pattern = (std::filesystem::temp_directory_path() / "hicache-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr)
      folder_ = pattern;
  }

  ~folder_test() override {
    auto ignored = std::error_code{};
    if (!folder_.empty())
      std::filesystem::remove_all(folder_, ignored);
  }

  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) {
    const auto path = (folder_ / name).string();
    std::ofstream{path} << content;
    return path;
  }

  std::filesystem::path folder_;
};

} // namespace hicache::test
