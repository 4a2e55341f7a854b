#include "launch/replay_workload.hpp"
#include "tests/runtime/support.hpp"

#include <algorithm>

namespace hicache {
namespace {

class TraceTest : public test::folder_test {
protected:
  /// Reads a trace that consists of these lines.
  result<std::vector<replay_request>> read(const std::string& lines, uint64_t limit = 0) {
    path_ = write("trace.jsonl", lines);
    return read_trace(path_, limit);
  }

  /// What a bad second line is answered with.
  std::string complaint(const std::string& line) {
    const auto requests = read(good + line + "\n");
    if (requests)
      return "none";
    EXPECT_EQ(requests.error().code, ec::invalid_argument);
    const auto where = "--trace: " + path_ + ":2: ";
    EXPECT_EQ(requests.error().detail.substr(0, where.size()), where);
    return requests.error().detail.substr(std::min(where.size(), requests.error().detail.size()));
  }

  const std::string good
    = "{\"timestamp\": 27.5, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [4, 70]}\n";
  std::string path_;
};

TEST_F(TraceTest, ReadsRequestsInOrder) {
  const auto requests = read(
    good
    + "\n{\"timestamp\":30,\"input_length\":512,\"output_length\":0,\"hash_ids\":[4],\"x\":1}\r\n");
  ASSERT_TRUE(requests) << requests.error().detail;
  ASSERT_EQ(requests->size(), 2u);
  const auto& first = requests->front();
  EXPECT_EQ(first.arrival_ms, 27.5);
  EXPECT_EQ(first.input_length, 600u);
  EXPECT_EQ(first.output_length, 9u);
  EXPECT_EQ(first.blocks, (std::vector<uint64_t>{4, 70}));
  EXPECT_EQ(first.line, 1u);
  EXPECT_EQ(requests->back().line, 3u); // Empty lines count as lines.
}

TEST_F(TraceTest, ReadsAtMostTheLimit) {
  EXPECT_EQ(read(good + good + good, 2)->size(), 2u);
  EXPECT_EQ(read(good + "not looked at", 1)->size(), 1u);
  EXPECT_EQ(read(good + good + good, 0)->size(), 3u);
}

TEST_F(TraceTest, BadLinesAreNamedWithWhatWasExpected) {
  EXPECT_EQ(complaint("{\"timestamp\": 1"), "expected one JSON object a line");
  EXPECT_EQ(complaint("[1]"), "expected an object");
  EXPECT_EQ(complaint("{}"), "expected milliseconds under 'timestamp'");
  EXPECT_EQ(complaint(R"({"timestamp":-1})"), "expected milliseconds under 'timestamp'");
  EXPECT_EQ(complaint(R"({"timestamp":1,"output_length":1})"),
            "expected a whole number under 'input_length'");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":-5,"output_length":1})"),
            "expected a whole number under 'input_length'");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":5,"output_length":"x"})"),
            "expected a whole number under 'output_length'");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":0,"output_length":1,"hash_ids":[]})"),
            "expected an 'input_length' from 1 to 134217728");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":5,"output_length":1})"),
            "expected a list under 'hash_ids'");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":5,"output_length":1,"hash_ids":["a"]})"),
            "expected whole numbers in 'hash_ids'");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":513,"output_length":1,"hash_ids":[1]})"),
            "expected 2 'hash_ids' for 513 tokens, found 1");
  EXPECT_EQ(complaint(R"({"timestamp":1,"input_length":512,"output_length":1,"hash_ids":[1,2]})"),
            "expected 1 'hash_ids' for 512 tokens, found 2");
}

TEST_F(TraceTest, MissingAndEmptyFilesAreNamed) {
  const auto path = (folder_ / "absent").string();
  EXPECT_EQ(read_trace(path, 0).error().detail, "--trace: cannot read the file " + path);
  const auto empty = read("\n  \n");
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().detail, "--trace: " + path_ + " holds no request");
}

replay_request request_of(std::vector<uint64_t> blocks, uint64_t length) {
  auto request = replay_request{};
  request.blocks = std::move(blocks);
  request.input_length = length;
  return request;
}

TEST(PromptTest, EqualBlocksAreEqualTokens) {
  const auto a = *prompt_tokens(request_of({7, 8}, 1024));
  const auto b = *prompt_tokens(request_of({8, 7, 8}, 1536));
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, b.begin() + 512));
  EXPECT_TRUE(std::equal(a.begin() + 512, a.end(), b.begin()));
  EXPECT_TRUE(std::equal(a.begin() + 512, a.end(), b.begin() + 1024));
}

TEST(PromptTest, OtherBlocksAreOtherTokens) {
  const auto a = *prompt_tokens(request_of({7}, 512));
  const auto b = *prompt_tokens(request_of({8}, 512));
  auto same = 0;
  for (auto i = 0u; i < 512; ++i)
    same += a[i] == b[i] ? 1 : 0;
  EXPECT_LT(same, 5);
}

TEST(PromptTest, LastBlockIsCut) {
  const auto whole = *prompt_tokens(request_of({7, 8}, 1024));
  const auto cut = *prompt_tokens(request_of({7, 8}, 513));
  ASSERT_EQ(cut.size(), 513u);
  EXPECT_TRUE(std::equal(cut.begin(), cut.end(), whole.begin()));
}

TEST(PromptTest, OutputFollowsThePromptAndIsItsOwn) {
  auto request = request_of({7}, 100);
  request.output_length = 30;
  const auto prompt = *prompt_tokens(request);
  const auto first = *prompt_and_output_tokens(request, 1);
  const auto second = *prompt_and_output_tokens(request, 2);
  ASSERT_EQ(first.size(), 130u);
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), first.begin()));
  EXPECT_NE(first, second);
  EXPECT_EQ(first, *prompt_and_output_tokens(request, 1));
}

TEST(MultiTurnTest, EveryPromptExtendsTheClientsFormerOne) {
  const auto requests = make_multi_turn({.clients = 3, .rounds = 4, .turn_tokens = 1300});
  ASSERT_EQ(requests.size(), 12u);
  for (auto i = size_t{3}; i < requests.size(); ++i) {
    const auto now = *prompt_tokens(requests[i]);
    const auto before = *prompt_tokens(requests[i - 3]);
    ASSERT_EQ(now.size(), before.size() + 1300);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin())) << i;
  }
}

TEST(MultiTurnTest, ClientsShareTheFirstHalfOfTheirFirstTurn) {
  const auto requests = make_multi_turn({.clients = 2, .rounds = 1, .turn_tokens = 2048});
  const auto a = *prompt_tokens(requests[0]);
  const auto b = *prompt_tokens(requests[1]);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 1024, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 1024, a.begin() + 1536, b.begin() + 1024));
  EXPECT_EQ(requests[1].line, 2u);
}

} // namespace
} // namespace hicache
