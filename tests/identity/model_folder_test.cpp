// hicachectl model-id: what the folder of a model says about whose KV it computes.

#include "identity/model_folder.hpp"
#include "tests/runtime/support.hpp"

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

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

  std::string id() const {
    const auto read = read_model_id(folder_.string());
    EXPECT_TRUE(read) << read.error().detail;
    return read.value_or("none");
  }

  std::string complaint() const {
    const auto read = read_model_id(folder_.string());
    if (read)
      return "none";
    EXPECT_EQ(read.error().code, ec::invalid_argument);
    return read.error().detail;
  }

  std::string path(const char* name) const { return (folder_ / name).string(); }
};

TEST_F(ModelFolderTest, AllBytesCount) {
  const auto base = id();
  EXPECT_EQ(base.substr(0, 8), "content:");
  EXPECT_EQ(base.size(), 8u + 64);
  EXPECT_EQ(id(), base);
  // The same names, types and shapes.
  for (const auto at : {0, 12345, 39999}) {
    auto tuned = std::string(40000, 'a');
    tuned[at] = 'x';
    write("model.safetensors", file_of({{"a", tuned}, {"b", std::string(9, 'b')}}));
    EXPECT_NE(id(), base) << at;
  }
}

TEST_F(ModelFolderTest, ProgramsAndProcessorsCountAndTextDoesNot) {
  const auto base = id();
  for (const auto* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "README.md", "model.safetensors.index.json", "chat_template.json"}) {
    write(name, "{}");
    EXPECT_EQ(id(), base) << name;
  }
  auto ids = std::set{base};
  for (const auto* name : {"processor_config.json", "modeling_own.py", "kv_cache_scales.json"}) {
    write(name, "{\"a\": 1}");
    EXPECT_TRUE(ids.insert(id()).second) << name;
    write(name, "{\"a\": 2}");
    EXPECT_TRUE(ids.insert(id()).second) << name;
  }
}

TEST_F(ModelFolderTest, WeightsOfOtherFormatsCountAsFiles) {
  std::filesystem::remove(path("model.safetensors"));
  auto ids = std::set<std::string>{};
  for (const auto* name : {"pytorch_model.bin", "consolidated.00.pth", "model.gguf"}) {
    write(name, "1");
    EXPECT_TRUE(ids.insert(id()).second) << name;
    write(name, "2");
    EXPECT_TRUE(ids.insert(id()).second) << name;
  }
  const auto alone = read_model_content(path("model.gguf"));
  ASSERT_TRUE(alone) << alone.error().detail;
  EXPECT_EQ(alone->bytes, 1u);
  EXPECT_TRUE(alone->files.empty());
}

TEST_F(ModelFolderTest, AFileLargerThanAPieceHasItsDigest) {
  auto large = std::string((size_t{8} << 20) + 1, 'a');
  write("model.safetensors", file_of({{"a", large}}));
  const auto base = id();
  for (const auto at : {size_t{0}, (size_t{8} << 20) - 1, size_t{8} << 20}) {
    large[at] = 'x';
    write("model.safetensors", file_of({{"a", large}}));
    EXPECT_NE(id(), base) << at;
    large[at] = 'a';
  }
  write("model.safetensors", file_of({{"a", large}}));
  EXPECT_EQ(id(), base);
}

/// With a folder for what is remembered.
class RememberedContentTest : public ModelFolderTest {
protected:
  RememberedContentTest() {
    cache_ = folder_ / "cache";
    ::setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
    model_ = folder_ / "model";
    std::filesystem::create_directory(model_);
    for (const auto* name : {"config.json", "model.safetensors"})
      std::filesystem::rename(folder_ / name, model_ / name);
    EXPECT_TRUE(read_model_content(model_, {}, std::chrono::system_clock::now()));
    EXPECT_EQ(records(), 0) << "what has just changed is not remembered";
    at_first_ = content();
    EXPECT_EQ(records(), 1);
  }

  ~RememberedContentTest() override { ::unsetenv("XDG_CACHE_HOME"); }

  model_content content(const std::filesystem::path& of) const {
    const auto later = std::chrono::system_clock::now() + std::chrono::seconds{3};
    const auto read = read_model_content(of, {}, later);
    EXPECT_TRUE(read) << read.error().detail;
    return read.value_or(model_content{});
  }

  model_content content() const { return content(model_); }

  int records() const {
    auto ignored = std::error_code{};
    auto count = 0;
    for (auto it = std::filesystem::directory_iterator{cache_ / "hicache" / "models", ignored};
         !ignored && it != std::filesystem::directory_iterator{}; ++it)
      ++count;
    return count;
  }

  std::filesystem::path cache_;
  std::filesystem::path model_;
  model_content at_first_;
};

TEST_F(RememberedContentTest, IsTakenUntilSomethingChanges) {
  // Damaged on purpose, to see whether the record is used.
  const auto record = std::filesystem::directory_iterator {
    cache_ / "hicache" / "models"
    } -> path();
  auto object = nlohmann::json::parse(std::ifstream{record});
  object["weights"] = "as remembered";
  std::ofstream{record} << object;
  EXPECT_EQ(content().weights, "as remembered");
  const auto link = folder_ / "link";
  std::filesystem::create_symlink(model_, link);
  EXPECT_EQ(content(link).weights, "as remembered");
  EXPECT_GT(content(link).changed_ns, at_first_.changed_ns) << "the link is younger";
  // Another tensor of the same size, with the file's time set back.
  const auto file = model_ / "model.safetensors";
  const auto time = std::filesystem::last_write_time(file);
  {
    auto in_place = std::fstream{file, std::ios::in | std::ios::out | std::ios::binary};
    in_place.seekp(-1, std::ios::end);
    in_place.put('c');
  }
  std::filesystem::last_write_time(file, time);
  const auto changed = content();
  EXPECT_NE(changed.weights, "as remembered");
  EXPECT_NE(changed.weights, at_first_.weights);
  EXPECT_GT(changed.changed_ns, at_first_.changed_ns);
}

TEST_F(RememberedContentTest, ACopyHasTheSameContent) {
  const auto copy = folder_ / "copy";
  std::filesystem::copy(model_, copy);
  EXPECT_EQ(content(copy).weights, at_first_.weights);
  EXPECT_EQ(content(copy).files, at_first_.files);
}

TEST_F(RememberedContentTest, BlobsOfAHubCountAsUnchanged) {
  const auto hub = folder_ / "hub";
  std::filesystem::create_directories(hub / "blobs");
  std::filesystem::create_directories(hub / "snapshots" / "1");
  for (const auto* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(model_ / name, hub / "blobs" / name);
    std::filesystem::create_symlink(std::filesystem::path{"../../blobs"} / name,
                                    hub / "snapshots" / "1" / name);
  }
  const auto found = content(hub / "snapshots" / "1");
  EXPECT_EQ(found.weights, at_first_.weights);
  EXPECT_EQ(found.changed_ns, 0);
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
  const auto whole = id();
  std::filesystem::remove(path("model.safetensors"));
  write("model-00001-of-00002.safetensors", file_of({{"b", std::string(9, 'b')}}));
  write("model-00002-of-00002.safetensors", file_of({{"a", std::string(40000, 'a')}}));
  EXPECT_EQ(id(), whole);
}

TEST_F(ModelFolderTest, ProgressComesUpToTheEnd) {
  write("model.safetensors",
        file_of({{"a", std::string(3 << 23, 'a')}, {"b", std::string(9, 'b')}}));
  auto last = uint64_t{0};
  auto calls = 0;
  const auto read = read_model_id(folder_.string(), [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, uint64_t{3 << 23} + 9);
    EXPECT_GT(done, last);
    last = done;
    ++calls;
  });
  EXPECT_TRUE(read);
  EXPECT_EQ(last, uint64_t{3 << 23} + 9);
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
                           + " has no weights; expected *.safetensors, or files that end "
                             "in .bin, .pt, .pth or .gguf");
  ASSERT_EQ(::mkfifo(at.c_str(), 0600), 0);
  EXPECT_EQ(complaint(), at + " is no file");
  write("config.json", "{");
  EXPECT_EQ(complaint(), path("config.json") + " is no JSON object");
  std::filesystem::remove(path("config.json"));
  const auto none = " has no config.json; expected the folder of a model as engines load it";
  EXPECT_EQ(complaint(), folder_.string() + none);
  EXPECT_EQ(read_model_id("/no/such").error().detail, std::string{"/no/such"} + none);
}

} // namespace
} // namespace hicache
