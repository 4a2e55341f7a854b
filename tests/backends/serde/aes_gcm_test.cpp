#include "backends/serde/aes_gcm.hpp"
#include "tests/backends/serde/serde_support.hpp"

#include <set>

namespace hicache::test {
namespace {

serde::secret_key key_from(const page_bytes& bytes) {
  auto key = serde::secret_key{};
  std::ranges::copy(bytes, key.bytes().begin());
  return key;
}

struct gcm_case {
  const char* key;
  const char* nonce;
  const char* plain;
  const char* associated;
  const char* cipher;
  const char* tag;
};

/// NIST CAVP, "GCM Test Vectors", gcmEncryptExtIV256.rsp: the first vectors with a nonce of 96 bits
/// and a tag of 128 for these lengths of text and associated data.
constexpr auto nist_encryptions = std::array{
  gcm_case{"b52c505a37d78eda5dd34f20c22540ea1b58963cf8e5bf8ffa85f9f2492505b4",
           "516c33929df5a3284ff463d7", "", "", "", "bdc1ac884d332457a1d2664f168c76f0"},
  gcm_case{"886cff5f3e6b8d0e1ad0a38fcdb26de97e8acbe79f6bed66959a598fa5047d65",
           "3a8efa1cd74bbab5448f9945", "", "519fee519d25c7a304d6c6aa1897ee1eb8c59655", "",
           "f6d47505ec96c98a42dc3ae719877b87"},
  gcm_case{"31bdadd96698c204aa9ce1448ea94ae1fb4a9a0b3c9d773b51bb1822666b8f22",
           "0d18e06c7c725ac9e362e1ce", "2db5168e932556f8089a0622981d017d", "",
           "fa4362189661d163fcd6a56d8bf0405a", "d636ac1bbedd5cc3ee727dc2ab4a9489"},
  gcm_case{"92e11dcdaa866f5ce790fd24501f92509aacf4cb8b1339d50c9c1240935dd08b",
           "ac93a1a6145299bde902f21a", "2d71bcfa914e4ac045b2aa60955fad24",
           "1e0889016f67601c8ebea4943bc23ad6", "8995ae2e6df3dbf96fac7b7137bae67f",
           "eca5aa77d51d4a0a14d9c51e1da474ab"},
  gcm_case{"5853c020946b35f2c58ec427152b840420c40029636adcbb027471378cfdde0f",
           "eec313dd07cc1b3e6b068a47",
           "ce7458e56aef9061cb0c42ec2315565e6168f5a6249ffd31610b6d17ab64935e",
           "1389b522c24a774181700553f0246bbabdd38d6f",
           "eadc3b8766a77ded1a58cb727eca2a9790496c298654cda78febf0da16b6903b",
           "3d49a5b32fde7eafcce90079217ffb57"},
  gcm_case{"24501ad384e473963d476edcfe08205237acfd49b5b8f33857f8114e863fec7f",
           "9ff18563b978ec281b3f2794",
           "27f348f9cdc0c5bd5e66b1ccb63ad920ff2219d14e8d631b3872265cf117ee86757accb158bd9abb3868fdc"
           "0d0b074b5f01b2c",
           "adb5ec720ccf9898500028bf34afccbcaca126ef",
           "eb7cb754c824e8d96f7c6d9b76c7d26fb874ffbf1d65c6f64a698d839b0b06145dae82057ad55994cf59ad7"
           "f67c0fa5e85fab8",
           "bc95c532fecc594c36d1550286a7a3f0"},
  gcm_case{"148579a3cbca86d5520d66c0ec71ca5f7e41ba78e56dc6eebd566fed547fe691",
           "b08a5ea1927499c6ecbfd4e0",
           "9d0b15fdf1bd595f91f8b3abc0f7dec927dfd4799935a1795d9ce00c9b879434420fe42c275a7cd7b39d638"
           "fb81ca52b49dc41",
           "e4f963f015ffbb99ee3349bbaf7e8e8e6c2a71c230a48f9d59860a29091d2747e01a5ca572347e247d25f56"
           "ba7ae8e05cde2be3c97931292c02370208ecd097ef692687fecf2f419d3200162a6480a57dad408a0dfeb49"
           "2e2c5d",
           "2097e372950a5e9383c675e89eea1c314f999159f5611344b298cda45e62843716f215f82ee663919c64002"
           "a5c198d7878fd3f",
           "adbecdb0d5c2224d804d2886ff9a5760"},
};

/// The same, gcmDecrypt256.rsp: the first vectors of these lengths that must not decrypt.
constexpr auto nist_refusals = std::array{
  gcm_case{"e5a8123f2e2e007d4e379ba114a2fb66e6613f57c72d4e4f024964053028a831",
           "51e43385bf533e168427e1ad", nullptr, "", "", "38fe845c66e66bdd884c2aecafd280e6"},
  gcm_case{"c0b46dc989a7bd45c15553e86a0bf206bf85a5222df1d5a7c8620ec8fa94cb95",
           "c140cffdba21d9226eca8284", nullptr, "410a4afa61dd30c2d687ba9cba18fe8a0cd37d58", "",
           "54ba2bc9b8621d84e936c839c0de7118"},
  gcm_case{"c997768e2d14e3d38259667a6649079de77beb4543589771e5068e6cd7cd0b14",
           "835090aed9552dbdd45277e2", nullptr, "", "9f6607d68e22ccf21928db0986be126e",
           "f32617f67c574fd9f44ef76ff880ab9f"},
  gcm_case{"9a0343f850a6427120f764789ffec6d237447b898fbf51d2182f065d3861497d",
           "3deef6f453dd70d92143adcd", nullptr, "dbb8226a624520863db6897017b2a4f8",
           "e93165935ac18e3a2845d15fe31a9286", "f5fc50d18766bc3d9e16dd136d45816b"},
  gcm_case{"c444d2bc6b0f14b306d7afbf9b0c84d9f2fcd2730df6d656402a184143a4eeb1",
           "89a840f9fede6fb08cce158e", nullptr, "aaade9efaed6435e3130b9c36d8a82d201cce2a8",
           "ff15d0cdaf9b5390018a881a759183ae5cf702b9550cac2de78ad2c6d0da5af1",
           "8655bd8d3213f0873d530c326a2fc15c"},
};

struct opened_case {
  explicit opened_case(const gcm_case& given)
    : key(key_from(from_hex(given.key))), nonce(from_hex(given.nonce)),
      associated(from_hex(given.associated)), cipher(from_hex(given.cipher)) {
    std::ranges::copy(from_hex(given.tag), tag.begin());
  }

  serde::gcm_nonce nonce_bytes() const { return std::span{nonce}.first<12>(); }

  /// In two parts, as an object's.
  std::vector<std::span<const std::byte>> parts() const {
    const auto all = std::span<const std::byte>{associated};
    return {all.first(all.size() / 2), all.subspan(all.size() / 2)};
  }

  serde::secret_key key;
  page_bytes nonce;
  page_bytes associated;
  page_bytes cipher;
  serde::object_seal tag{};
};

TEST(AesGcmTest, EncryptsAndDecryptsTheVectorsOfNist) {
  const auto gcm = serde::aes_gcm{};
  for (const auto& given : nist_encryptions) {
    const auto x = opened_case{given};
    auto text = from_hex(given.plain);
    const auto tag = gcm.seal(x.key, x.nonce_bytes(), x.parts(), text);
    ASSERT_TRUE(tag);
    EXPECT_EQ(text, x.cipher) << given.key;
    EXPECT_EQ(*tag, x.tag) << given.key;
    EXPECT_TRUE(gcm.open(x.key, x.nonce_bytes(), x.parts(), x.tag, text));
    EXPECT_EQ(text, from_hex(given.plain));
  }
}

TEST(AesGcmTest, RefusesTheVectorsOfNistThatFail) {
  const auto gcm = serde::aes_gcm{};
  for (const auto& given : nist_refusals) {
    const auto x = opened_case{given};
    auto text = x.cipher;
    EXPECT_FALSE(gcm.open(x.key, x.nonce_bytes(), x.parts(), x.tag, text)) << given.key;
  }
}

/// The two vectors of the specification of XAES-256-GCM (C2SP), section "Test vectors".
TEST(AesGcmTest, DerivesKeysAsXaes256GcmDoes) {
  const auto gcm = serde::aes_gcm{};
  const auto nonce = bytes_of_text("ABCDEFGHIJKLMNOPQRSTUVWX");
  const auto first = std::span{nonce}.first<12>();
  const auto second = std::span{nonce}.last<12>();
  struct xaes_case {
    std::byte key;
    const char* associated;
    const char* derived;
    const char* sealed;
  };
  for (const auto& given :
       {xaes_case{std::byte{1}, "",
                  "c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b",
                  "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"},
        xaes_case{std::byte{3}, "c2sp.org/XAES-256-GCM",
                  "e9c621d4cdd9b11b00a6427ad7e559aeedd66b3857646677748f8ca796cb3fd8",
                  "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"}}) {
    const auto derived = gcm.derive(key_from(page_bytes(32, given.key)), first);
    ASSERT_TRUE(derived);
    EXPECT_TRUE(std::ranges::equal(derived->bytes(), from_hex(given.derived)));
    auto text = bytes_of_text("XAES-256-GCM");
    const auto associated = bytes_of_text(given.associated);
    const auto tag = gcm.seal(*derived, second, std::array{std::span{associated}}, text);
    ASSERT_TRUE(tag);
    text.insert(text.end(), tag->begin(), tag->end());
    EXPECT_EQ(text, from_hex(given.sealed));
  }
}

TEST(AesGcmTest, AKeyIsZeroAfterItHasBeenMoved) {
  auto key = key_from(page_bytes(32, std::byte{5}));
  const auto other = serde::secret_key{std::move(key)};
  const auto* left = &key;
  EXPECT_TRUE(std::ranges::all_of(left->bytes(), [](auto x) { return x == std::byte{0}; }));
  EXPECT_TRUE(std::ranges::all_of(other.bytes(), [](auto x) { return x == std::byte{5}; }));
}

TEST(AesGcmTest, ADestroyedKeyLeavesZeros) {
  alignas(serde::secret_key) auto memory = std::array<std::byte, sizeof(serde::secret_key)>{};
  auto* const key = new (memory.data()) serde::secret_key;
  std::ranges::fill(key->bytes(), std::byte{5});
  key->~secret_key();
  // Read as volatile: the compiler need not have kept what a dead object held.
  const volatile auto* const left = memory.data();
  for (auto i = size_t{0}; i < memory.size(); ++i)
    EXPECT_TRUE(left[i] == std::byte{0}) << i;
}

TEST(AesGcmTest, NoncesDifferInTheirRandomPartAndInTheirCount) {
  auto source = serde::nonce_source{};
  auto random = std::set<uint64_t>{};
  auto counts = std::set<uint64_t>{};
  const auto word_at = [](const serde::object_nonce& nonce, size_t at) {
    auto word = uint64_t{0};
    std::memcpy(&word, nonce.data() + at, sizeof word);
    return word;
  };
  for (auto i = 0; i < 1000; ++i) {
    const auto nonce = source.next();
    ASSERT_TRUE(nonce);
    random.insert(word_at(*nonce, 0));
    random.insert(word_at(*nonce, 8));
    counts.insert(word_at(*nonce, 16));
  }
  EXPECT_EQ(random.size(), 2000u);
  EXPECT_EQ(counts.size(), 1000u);
}

} // namespace
} // namespace hicache::test
