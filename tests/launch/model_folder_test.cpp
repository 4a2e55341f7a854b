// hicachectl model-id: what the folder of a model says about whose KV it computes.

#include "launch/model_folder.hpp"
#include "tests/runtime/support.hpp"

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <map>

namespace hicache {
namespace {

using json = nlohmann::json;

class ModelFolderTest : public test::folder_test {
protected:
  ModelFolderTest() {
    write("config.json", R"({"hidden_size": 8, "rope_theta": 10000.0, "_name_or_path": "here"})");
    write("model.safetensors",
          file_of({{"a", std::string(40000, 'a')}, {"b", std::string(9, 'b')}}));
  }

  /// A safetensors file with tensors of bytes.
  static std::string file_of(const std::map<std::string, std::string>& tensors) {
    auto header = json::object();
    auto data = std::string{};
    for (const auto& [name, bytes] : tensors) {
      header[name] = {{"dtype", "U8"},
                      {"shape", {bytes.size()}},
                      {"data_offsets", {data.size(), data.size() + bytes.size()}}};
      data += bytes;
    }
    return framed(header.dump()) + data;
  }

  static std::string framed(const std::string& header, uint64_t length) {
    auto file = std::string{};
    for (auto i = 0; i < 8; ++i)
      file += static_cast<char>(length >> (8 * i));
    return file + header;
  }

  static std::string framed(const std::string& header) { return framed(header, header.size()); }

  std::string id(weights_read what = weights_read::sample) const {
    const auto read = read_model_id(folder_.string(), what);
    EXPECT_TRUE(read) << read.error().detail;
    return read.value_or("none");
  }

  std::string complaint() const {
    const auto read = read_model_id(folder_.string(), weights_read::sample);
    if (read)
      return "none";
    EXPECT_EQ(read.error().code, ec::invalid_argument);
    return read.error().detail;
  }

  std::string path(const char* name) const { return (folder_ / name).string(); }
};

TEST_F(ModelFolderTest, AFineTuneHasAnotherId) {
  const auto base = id();
  EXPECT_EQ(base.substr(0, 15), "sampled-sha256:");
  EXPECT_EQ(base.size(), 15u + 64);
  EXPECT_EQ(id(), base);
  // The same names, types and shapes.
  auto tuned = std::string(40000, 'a');
  tuned[20001] = 'x';
  write("model.safetensors", file_of({{"a", tuned}, {"b", std::string(9, 'b')}}));
  EXPECT_NE(id(), base);
}

TEST_F(ModelFolderTest, AllBytesCountWhereAllAreRead) {
  const auto base = id(weights_read::all);
  const auto sample = id();
  EXPECT_EQ(base.substr(0, 7), "sha256:");
  for (const auto at : {0, 12345, 39999}) {
    auto tuned = std::string(40000, 'a');
    tuned[at] = 'x';
    write("model.safetensors", file_of({{"a", tuned}, {"b", std::string(9, 'b')}}));
    EXPECT_NE(id(weights_read::all), base) << at;
  }
  EXPECT_EQ(id(), sample) << "a sample does not see the last byte";
}

TEST_F(ModelFolderTest, SettingsCountAndTheirOriginDoesNot) {
  const auto base = id();
  write("config.json", R"({"rope_theta": 10000.0, "hidden_size": 8, "_name_or_path": "there"})");
  EXPECT_EQ(id(), base);
  write("config.json", R"({"rope_theta": 500000.0, "hidden_size": 8})");
  EXPECT_NE(id(), base);
  write("config.json", R"({"rope_theta": 10000.0, "hidden_size": 8})");
  write("hf_quant_config.json", R"({"quantization": {"kv_cache_quant_algo": "FP8"}})");
  EXPECT_NE(id(), base);
}

TEST_F(ModelFolderTest, FilesThatShareTheTensorsMakeNoDifference) {
  const auto whole = std::pair{id(), id(weights_read::all)};
  std::filesystem::remove(path("model.safetensors"));
  write("model-00001-of-00002.safetensors", file_of({{"b", std::string(9, 'b')}}));
  write("model-00002-of-00002.safetensors", file_of({{"a", std::string(40000, 'a')}}));
  EXPECT_EQ((std::pair{id(), id(weights_read::all)}), whole);
}

TEST_F(ModelFolderTest, ProgressComesUpToTheEnd) {
  write("model.safetensors",
        file_of({{"a", std::string(3 << 20, 'a')}, {"b", std::string(9, 'b')}}));
  auto last = uint64_t{0};
  auto calls = 0;
  const auto read
    = read_model_id(folder_.string(), weights_read::all, [&](uint64_t done, uint64_t total) {
        EXPECT_EQ(total, uint64_t{3 << 20} + 9);
        EXPECT_GT(done, last);
        last = done;
        ++calls;
      });
  EXPECT_TRUE(read);
  EXPECT_EQ(last, uint64_t{3 << 20} + 9);
  EXPECT_EQ(calls, 4);
}

TEST_F(ModelFolderTest, BadFoldersGetOneSentence) {
  const auto at = path("model.safetensors");
  write("model.safetensors", "short");
  EXPECT_EQ(complaint(), at + " is too short for safetensors");
  write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_EQ(complaint(), at
                           + " is no safetensors file: its first 8 bytes say that a header of "
                             "2336927755350992246 bytes follows")
    << "a pointer of Git LFS";
  write("model.safetensors", framed("{}", 3));
  EXPECT_EQ(complaint(),
            at + " is no safetensors file: its first 8 bytes say that a header of 3 bytes follows");
  write("model.safetensors", framed("no"));
  EXPECT_EQ(complaint(), at + " has a header that is no JSON object");
  const auto whole = file_of({{"a", "abcdef"}});
  write("model.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_EQ(complaint(), at + " holds 5 bytes of tensors where its header says 6");
  std::filesystem::remove(at);
  EXPECT_EQ(complaint(), folder_.string()
                           + " has no *.safetensors; expected the weights of a model "
                             "in that format");
  ASSERT_EQ(::mkfifo(at.c_str(), 0600), 0);
  EXPECT_EQ(complaint(), at + " is no file");
  write("config.json", "{");
  EXPECT_EQ(complaint(), path("config.json") + " is no JSON object");
  std::filesystem::remove(path("config.json"));
  const auto none = " has no config.json; expected the folder of a model as engines load it";
  EXPECT_EQ(complaint(), folder_.string() + none);
  EXPECT_EQ(read_model_id("/no/such", weights_read::sample).error().detail,
            std::string{"/no/such"} + none);
}

} // namespace
} // namespace hicache
