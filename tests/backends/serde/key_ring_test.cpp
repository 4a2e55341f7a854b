#include "backends/serde/key_ring.hpp"
#include "backends/serde/key_source.hpp"
#include "cache/hash/page_hash.hpp"
#include "tests/backends/serde/serde_support.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <fstream>

namespace hicache::test {
namespace {

using serde::key_ring;

const auto digits = std::string(64, 'a');

std::byte first_byte(const serde::secret_key& key) {
  return key.bytes().front();
}

TEST(KeyRingTest, FindsKeysByNameAndTheNewestByTenant) {
  const auto keys = keys_of();
  EXPECT_EQ(keys.size(), 3u);
  ASSERT_NE(keys.find("old"), nullptr);
  EXPECT_EQ(first_byte(*keys.find("old")), std::byte{0x11});
  EXPECT_EQ(keys.find("none"), nullptr);
  EXPECT_EQ(keys.newest(0)->id, "new");
  EXPECT_EQ(keys.newest(tenant_of("another"))->id, "new");
  EXPECT_EQ(keys.newest(tenant_of("a tenant"))->id, "its");
}

TEST(KeyRingTest, ATenantWithoutAKeyHasNone) {
  const auto keys = keys_of("a tenant k1 " + digits);
  EXPECT_NE(keys.newest(tenant_of("a tenant")), nullptr);
  EXPECT_EQ(keys.newest(0), nullptr);
  EXPECT_EQ(keys.newest(tenant_of("another")), nullptr);
}

TEST(KeyRingTest, SkipsCommentsBlanksAndEndsOfDos) {
  const auto keys = keys_of("# ours\r\n\r\n  \t* \t k.1-A_z \t" + std::string(64, 'F') + "\t\r\n");
  ASSERT_NE(keys.find("k.1-A_z"), nullptr);
  EXPECT_EQ(first_byte(*keys.find("k.1-A_z")), std::byte{0xFF});
}

TEST(KeyRingTest, SaysWhichLineIsWrongAndNeverQuotesAKey) {
  const auto secret = std::string(63, 'b');
  const auto cases = std::vector<std::pair<std::string, std::string>>{
    {"", "the keys are empty"},
    {"\n# nothing\n", "the keys are empty"},
    {"* k " + secret, "line 1 of the keys does not end with a key"},
    {"* k " + secret + "bb", "line 1 of the keys does not end with a key"},
    {"* k " + secret + "g", "line 1 of the keys does not end with a key"},
    {"\n* " + secret + "b", "line 2 of the keys has less than three words"},
    {secret, "line 1 of the keys has less than three words"},
    {"* " + secret + " k", "line 1 of the keys has no valid name"},
    {"* seventeen.letters " + secret + "b", "line 1 of the keys has no valid name"},
    {"* k! " + secret + "b", "line 1 of the keys has no valid name"},
    {"* k " + digits + "\ntenant k " + secret + "b", "line 2 of the keys uses the name 'k' again"},
  };
  for (const auto& [text, sentence] : cases) {
    const auto keys = key_ring::parse(text);
    ASSERT_FALSE(keys) << text;
    EXPECT_EQ(keys.error().code, ec::invalid_argument);
    EXPECT_EQ(keys.error().detail.substr(0, sentence.size()), sentence);
    EXPECT_EQ(keys.error().detail.find(secret), std::string::npos) << keys.error().detail;
  }
}

TEST(KeySourceTest, ReadsAFile) {
  const auto folder = temporary_folder{};
  const auto path = std::string{folder.path()} + "/keys";
  std::ofstream{path} << three_keys;
  const auto keys = serde::read_key_file(path);
  ASSERT_TRUE(keys) << to_string(keys.error());
  EXPECT_EQ(keys->size(), 3u);
}

TEST(KeySourceTest, SaysWhyAFileCannotBeRead) {
  const auto folder = temporary_folder{};
  const auto missing = serde::read_key_file(std::string{folder.path()} + "/missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ec::io_failure);
  EXPECT_NE(missing.error().detail.find("/missing' could not be opened"), std::string::npos);
  EXPECT_EQ(code_of(serde::read_key_file(folder.path())), ec::io_failure);
  const auto path = std::string{folder.path()} + "/long";
  std::ofstream{path} << std::string(serde::key_text_bytes + 1, '#');
  const auto longer = serde::read_key_file(path);
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().detail.find("more than the 1048576 bytes"), std::string::npos);
}

TEST(KeySourceTest, RunsACommand) {
  const auto keys = serde::run_key_command(
    "printf '* k1 '; head -c 32 /dev/zero | od -An -v -tx1 | tr -d ' \\n'; echo; echo noise >&2",
    std::chrono::seconds{60});
  ASSERT_TRUE(keys) << to_string(keys.error());
  ASSERT_NE(keys->find("k1"), nullptr);
  EXPECT_EQ(first_byte(*keys->find("k1")), std::byte{0});
}

TEST(KeySourceTest, SaysWhyACommandFailed) {
  const auto run = [](const char* command, std::chrono::milliseconds time) {
    const auto keys = serde::run_key_command(command, time);
    EXPECT_FALSE(keys);
    return keys ? error{} : keys.error();
  };
  constexpr auto minute = std::chrono::minutes{1};
  EXPECT_EQ(run("exit 3", minute), (error{ec::io_failure, "the key command ended with status 3"}));
  EXPECT_EQ(run("kill -9 $$", minute),
            (error{ec::io_failure, "the key command was ended by signal 9"}));
  EXPECT_EQ(run("no-such-command-here 2>/dev/null", minute),
            (error{ec::io_failure, "the key command ended with status 127"}));
  EXPECT_EQ(run("true", minute).code, ec::invalid_argument);
  EXPECT_EQ(run("yes", minute).detail.substr(0, 42), "the output of the key command has more tha");
  const auto late = error{ec::deadline_exceeded, "the key command did not end in time"};
  EXPECT_EQ(run("exec cat /dev/zero >/dev/null", std::chrono::milliseconds{20}), late);
  EXPECT_EQ(run("exec >&-; exec cat /dev/zero >/dev/null", std::chrono::milliseconds{20}), late);
}

} // namespace
} // namespace hicache::test
