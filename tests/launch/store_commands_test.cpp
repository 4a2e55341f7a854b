// hicachectl store, on stores in folders.

#include "hicache/store.hpp"
#include "launch/program.hpp"
#include "launch/store_commands.hpp"
#include "runtime/rank_config.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace hicache::test {
namespace {

using testing::HasSubstr;

constexpr auto patience = std::chrono::seconds{60};

struct outcome {
  int code = 0;
  std::string out;
  std::string complaint;
};

/// Runs "hicachectl store ARGUMENTS".
outcome run(std::vector<std::string> arguments) {
  auto app = CLI::App{"", "hicachectl"};
  const auto commands = store_commands{app};
  arguments.insert(arguments.begin(), "store");
  std::reverse(arguments.begin(), arguments.end()); // As CLI11 takes them.
  app.parse(arguments);
  EXPECT_TRUE(app.got_subcommand("store"));
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto code = commands.perform();
  auto seen = outcome{code ? *code : exit_usage, testing::internal::GetCapturedStdout(),
                      testing::internal::GetCapturedStderr()};
  if (!code)
    seen.complaint = code.error().detail;
  return seen;
}

std::string text_of(const std::filesystem::path& path) {
  auto file = std::ifstream{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

std::string name_of(uint64_t number) {
  return to_string(key_of(number));
}

/// Two tiers: a folder that takes all writes, and one that takes none.
class StoreCommandsTest : public testing::Test {
protected:
  StoreCommandsTest() {
    const auto extra = R"({\"tiers\": [{\"backend\": \"file\", \"path\": \")" + path("first")
                       + R"(\"}, {\"backend\": \"file\", \"write\": \"never\", \"path\": \")"
                       + path("second") + R"(\"}]})";
    std::ofstream{path("ranks.toml")} << "hicache-storage-backend = \"tiered\"\nmodel-id = \"m\"\n"
                                      << "hicache-storage-backend-extra-config = \"" << extra
                                      << "\"\n";
    std::ofstream{path("object")} << "the bytes of an object";
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  /// Writes settings of ranks with a store in a folder.
  void write_config(const std::string& file, const std::string& model, const std::string& backend,
                    const std::string& folder) const {
    std::ofstream{path(file)}
      << "hicache-storage-backend = \"" << backend << "\"\nmodel-id = \"" << model << "\"\n"
      << "hicache-storage-backend-extra-config = '{\"max_bytes\": \"16MiB\", \"path\": \""
      << path(folder) << "\"}'\n";
  }

  /// The same, with the settings of the ranks.
  outcome run_here(const std::vector<std::string>& arguments) const {
    return run_with("ranks.toml", arguments);
  }

  outcome run_with(const std::string& file, std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--config", path(file)});
    return run(std::move(arguments));
  }

  /// The file of an object in a tier.
  std::filesystem::path file_of(const std::string& tier, uint64_t number) const {
    const auto name = name_of(number);
    return path(tier) + "/" + name.substr(0, 2) + "/" + name + ".kv";
  }

  const temporary_folder folder_;
};

TEST_F(StoreCommandsTest, PutsGetsAndRemovesAnObject) {
  EXPECT_EQ(run_here({"exists", name_of(1)}).code, exit_failed);
  EXPECT_EQ(run_here({"put", name_of(1), path("object")}).code, exit_ok);
  EXPECT_TRUE(std::filesystem::exists(file_of("first", 1)));
  EXPECT_FALSE(std::filesystem::exists(file_of("second", 1))) << "the tier takes no writes";
  EXPECT_EQ(run_here({"get", name_of(1)}).out, "the bytes of an object");
  EXPECT_EQ(run_here({"get", name_of(1), "--output", path("back")}).code, exit_ok);
  EXPECT_EQ(text_of(path("back")), "the bytes of an object");
  const auto found = run_here({"exists", name_of(1), name_of(2)});
  EXPECT_EQ(found.code, exit_failed);
  EXPECT_EQ(found.out, name_of(1) + "  1 (file)\n" + name_of(2) + "  none\n");
  EXPECT_EQ(run_here({"ls"}).out, name_of(1) + "           22  1 (file)\n");
  EXPECT_EQ(run_here({"rm", name_of(1)}).code, exit_ok);
  const auto gone = run_here({"get", name_of(1)});
  EXPECT_EQ(gone.code, exit_failed);
  EXPECT_EQ(gone.complaint, "hicachectl: the store has no such object\n");
  EXPECT_EQ(run_here({"ls"}).out, "");
}

TEST_F(StoreCommandsTest, WritesToATierThatIsNamed) {
  EXPECT_EQ(run_here({"put", name_of(1), path("object"), "--tier", "2"}).code, exit_ok);
  EXPECT_FALSE(std::filesystem::exists(file_of("first", 1)));
  EXPECT_EQ(run_here({"du"}).out, "           0 objects          0 B  1 (file)\n"
                                  "           1 objects         22 B  2 (file)\n");
  EXPECT_THAT(run_here({"du", "--tier", "3"}).complaint,
              "--tier: there are 2 tiers; expected a number from 1 to 2");
}

TEST_F(StoreCommandsTest, VerifyFindsDamageAndTheStoreRemovesIt) {
  ASSERT_EQ(run_here({"put", name_of(1), path("object")}).code, exit_ok);
  ASSERT_EQ(run_here({"put", name_of(2), path("object")}).code, exit_ok);
  EXPECT_EQ(run_here({"verify"}).code, exit_ok);
  auto damaged = text_of(file_of("first", 2));
  damaged.back() ^= 1;
  std::ofstream{file_of("first", 2), std::ios::binary} << damaged;
  // Whose KV it is does not matter for that.
  const auto seen = run({"verify", "--json", "--backend", "file", "--extra-config",
                         R"({"path": ")" + path("first") + R"("})"});
  EXPECT_EQ(seen.code, exit_failed);
  EXPECT_THAT(seen.out, HasSubstr(R"("objects": 2,
    "bytes": 44,
    "corrupt": 1,
    "failed": 0)"));
  EXPECT_EQ(run_here({"exists", name_of(2)}).code, exit_failed);
  EXPECT_EQ(run_here({"verify"}).code, exit_ok);
}

TEST_F(StoreCommandsTest, ExportsToAFolderAndImportsFromIt) {
  constexpr auto count = uint64_t{150};
  {
    auto config = rank_config{};
    config.model_id = "m";
    ASSERT_TRUE(config.finish(1));
    const auto store
      = hicache::store::open({.backend = "file",
                              .extra_config = R"({"path": ")" + path("first") + R"("})",
                              .identity = config.fingerprint()});
    auto contents = std::vector<page_bytes>{};
    auto writes = std::vector<page_write>{};
    for (auto i = uint64_t{0}; i < count; ++i)
      contents.push_back(bytes_of(i, 100 + i));
    for (auto i = uint64_t{0}; i < count; ++i)
      writes.push_back({key_of(i), {}, {contents[i]}});
    for (const auto& written : (*store)->write(std::move(writes), patience))
      ASSERT_TRUE(written);
  }
  EXPECT_EQ(
    run_here({"export", path("dump")}).out,
    "150 objects, 25.6 KiB copied; left out: 0 of another namespace, 0 damaged; 0 failed\n");
  EXPECT_EQ(run_here({"export", path("dump")}).out,
            "0 objects, 0 B copied; left out: 0 of another namespace, 0 damaged; 0 failed\n")
    << "all are there already";
  std::filesystem::remove_all(path("first"));
  EXPECT_EQ(run_here({"import", path("dump")}).code, exit_ok);
  EXPECT_EQ(run_here({"verify"}).out, "         150 objects     25.6 KiB, 0 damaged, 0 not read  "
                                      "1 (file)\n           0 objects          0 B, 0 damaged, 0 "
                                      "not read  2 (file)\n");
  for (auto i = uint64_t{0}; i < count; ++i)
    EXPECT_EQ(text_of(file_of("first", i)), text_of(file_of("dump", i)));
}

TEST_F(StoreCommandsTest, LeavesObjectsOfOtherNamespacesAlone) {
  ASSERT_EQ(run_here({"put", name_of(1), path("object")}).code, exit_ok);
  write_config("others.toml", "another", "file", "first");
  const auto others
    = [&](const std::vector<std::string>& arguments) { return run_with("others.toml", arguments); };
  ASSERT_EQ(others({"put", name_of(2), path("object")}).code, exit_ok);
  EXPECT_EQ(run_here({"verify"}).code, exit_ok);
  EXPECT_EQ(others({"get", name_of(1)}).out, "the bytes of an object");
  EXPECT_EQ(others({"export", path("dump")}).out,
            "1 objects, 22 B copied; left out: 1 of another namespace, 0 damaged; 0 failed\n");
  EXPECT_TRUE(std::filesystem::exists(file_of("dump", 2)));
  EXPECT_FALSE(std::filesystem::exists(file_of("dump", 1)));
  for (const auto number : {1u, 2u})
    EXPECT_TRUE(std::filesystem::exists(file_of("first", number)));
}

TEST_F(StoreCommandsTest, ExportsNoObjectsOfOthersFromADisk) {
  write_config("ours.toml", "m", "disk", "disk");
  write_config("others.toml", "another", "disk", "disk");
  ASSERT_EQ(run_with("ours.toml", {"put", name_of(1), path("object")}).code, exit_ok);
  ASSERT_EQ(run_with("others.toml", {"put", name_of(2), path("object")}).code, exit_ok);
  EXPECT_EQ(run_with("ours.toml", {"export", path("dump")}).out,
            "1 objects, 22 B copied; left out: 1 of another namespace, 0 damaged; 0 failed\n");
  EXPECT_TRUE(std::filesystem::exists(file_of("dump", 1)));
  EXPECT_FALSE(std::filesystem::exists(file_of("dump", 2)));
}

TEST_F(StoreCommandsTest, ExportCountsWhatIsDamaged) {
  for (const auto number : {1u, 2u})
    ASSERT_EQ(run_here({"put", name_of(number), path("object")}).code, exit_ok);
  auto damaged = text_of(file_of("first", 2));
  damaged.back() ^= 1;
  std::ofstream{file_of("first", 2), std::ios::binary} << damaged;
  EXPECT_EQ(run_here({"export", path("dump")}).out,
            "1 objects, 22 B copied; left out: 0 of another namespace, 1 damaged; 0 failed\n");
}

TEST_F(StoreCommandsTest, SaysWhatIsWrong) {
  const auto complaint = [&](std::vector<std::string> arguments) {
    const auto seen = run_here(std::move(arguments));
    EXPECT_EQ(seen.code, exit_usage);
    return seen.complaint;
  };
  EXPECT_THAT(complaint({"get", "abc"}), HasSubstr("KEY: 'abc' is no name of an object"));
  EXPECT_THAT(complaint({"put", name_of(1), path("nothing")}), HasSubstr("FILE: cannot read"));
  EXPECT_EQ(run({"ls"}).complaint, "expected either --config FILE or --backend NAME");
  EXPECT_EQ(run({"ls", "--backend", "tape"}).code, exit_usage);
  EXPECT_EQ(
    run({"ls", "--backend", "file", "--extra-config", R"({"path": ")" + path("none") + R"("})"})
      .complaint,
    "there is no folder " + path("none"));
  EXPECT_EQ(run({"put", name_of(1), path("object"), "--backend", "memory"}).complaint,
            "objects say whose KV they are; expected --config FILE of the ranks that use them");
  EXPECT_THAT(run({"ls", "--config", path("nothing")}).complaint, HasSubstr("--config: "));
  EXPECT_EQ(complaint({"ls", "--rank", "1"}), "--rank: 1 of 1; expected a number below --ranks");
  std::ofstream{path("no_store.toml")} << "model = \"tiny\"\n";
  EXPECT_THAT(run({"ls", "--config", path("no_store.toml")}).complaint,
              HasSubstr("names no store"));
}

} // namespace
} // namespace hicache::test
