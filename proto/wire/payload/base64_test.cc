// The decoder against an encoder that goes bit by bit, and every way a text can be malformed.
#include "proto/wire/payload/base64.h"

#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

constexpr absl::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// RFC 4648 section 4, one bit at a time.
std::string SlowBase64(absl::string_view bytes) {
  std::string bits, text;
  for (const char c : bytes) {
    for (int i = 7; i >= 0; --i) bits += static_cast<uint8_t>(c) >> i & 1 ? '1' : '0';
  }
  while (bits.size() % 6 != 0) bits += '0';
  for (size_t i = 0; i < bits.size(); i += 6) text += kAlphabet[std::stoi(bits.substr(i, 6), nullptr, 2)];
  while (text.size() % 4 != 0) text += '=';
  return text;
}

absl::StatusOr<std::string> Decode(absl::string_view text) {
  // A copy of just this size, so that a read past its end is seen by ASan.
  const std::vector<uint8_t> exact(text.begin(), text.end());
  auto bytes = DecodeBase64(exact);
  if (!bytes.ok()) return bytes.status();
  return std::string(bytes->span().begin(), bytes->span().end());
}

auto IsMalformed() { return Fails(absl::StatusCode::kInvalidArgument, Reason::kEncoding); }

TEST(Base64Test, VectorsOfTheRfc) {
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                                                    {"Zg==", "f"},
                                                                                    {"Zm8=", "fo"},
                                                                                    {"Zm9v", "foo"},
                                                                                    {"Zm9vYg==", "foob"},
                                                                                    {"Zm9vYmE=", "fooba"},
                                                                                    {"Zm9vYmFy", "foobar"}}) {
    EXPECT_EQ(SlowBase64(bytes), text);
    ASSERT_OK_AND_ASSIGN(const std::string decoded, Decode(text));
    EXPECT_EQ(decoded, bytes);
  }
}

TEST(Base64Test, EveryLengthDecodesToWhatWentIn) {
  std::mt19937_64 random(1);
  for (size_t size = 0; size <= 300; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    ASSERT_OK_AND_ASSIGN(const std::string decoded, Decode(SlowBase64(bytes)));
    ASSERT_EQ(decoded, bytes) << size;
  }
}

TEST(Base64Test, LengthMustBeAMultipleOfFour) {
  const std::string text = SlowBase64("any thirty bytes of some text.");
  for (size_t size = 0; size <= text.size(); ++size) {
    if (size % 4 == 0) {
      EXPECT_OK(Decode(text.substr(0, size)));
    } else {
      EXPECT_THAT(Decode(text.substr(0, size)), IsMalformed()) << size;
    }
  }
}

TEST(Base64Test, ABadByteAtAnyPlaceIsNamed) {
  for (const absl::string_view bytes : {"abcdefghijkl", "abcdefghijk", "abcdefghij"}) {
    const std::string good = SlowBase64(bytes);
    const size_t letters = good.find('=') == std::string::npos ? good.size() : good.find('=');
    for (size_t place = 0; place < letters; ++place) {
      for (int c = 0; c < 256; ++c) {
        if (kAlphabet.find(static_cast<char>(c)) != absl::string_view::npos) continue;
        std::string bad = good;
        bad[place] = static_cast<char>(c);
        // Padding one place earlier is padding, and then the unused bits decide.
        if (c == '=' && place + 1 == letters && letters + 1 >= good.size()) continue;
        const absl::Status status = Decode(bad).status();
        ASSERT_THAT(status, IsMalformed()) << bad;
        ASSERT_EQ(GetErrorDetail(status)->field, "payload");
        if (c != '=') {
          ASSERT_NE(status.message().find(absl::StrCat(" at ", place, " ")), absl::string_view::npos) << status;
        }
      }
    }
  }
}

TEST(Base64Test, PaddingOnlyAtTheEndAndNotTooMuch) {
  for (const absl::string_view text :
       {"====", "A===", "=AAA", "A=AA", "AA=A", "A=A=", "AA==AAAA", "AAA=AAAA", "AAAA====", "AAAAA===", "Zg==Zg=="}) {
    EXPECT_THAT(Decode(text), IsMalformed()) << text;
  }
}

TEST(Base64Test, WhiteSpaceAndUrlAlphabetAreRefused) {
  for (const absl::string_view text : {"Zm9v\n   ", "Zm9\n", " Zm9", "Zm 9", "Zm9v\r\n\r\n", "Zm9-", "Zm9_"}) {
    EXPECT_THAT(Decode(text), IsMalformed()) << text;
  }
}

TEST(Base64Test, UnusedBitsMustBeZero) {
  for (size_t value = 0; value < 64; ++value) {
    const std::string two = absl::StrCat("A", kAlphabet.substr(value, 1), "==");
    const std::string three = absl::StrCat("AA", kAlphabet.substr(value, 1), "=");
    EXPECT_EQ(Decode(two).ok(), value % 16 == 0) << two;
    EXPECT_EQ(Decode(three).ok(), value % 4 == 0) << three;
  }
}

}  // namespace
}  // namespace routing_replay
