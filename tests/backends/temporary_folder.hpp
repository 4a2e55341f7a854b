#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace hicache::test {

/// An empty folder of its own, removed with the object.
class temporary_folder {
public:
  temporary_folder() {
    auto pattern = testing::TempDir() + "hicache.XXXXXX";
    const auto* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr) << pattern;
    path_ = pattern;
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    auto failed = std::error_code{};
    std::filesystem::remove_all(path_, failed);
  }

  const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
};

} // namespace hicache::test
