#include "proto/wire/payload/tensor_view.h"

#include <zstd.h>

#include <random>

#include "absl/strings/escaping.h"
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
  // Copy the text to memory of exactly its size, so that ASan detects a read past its end.
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
        // An "=" in place of the last letter is valid padding, so it is no error of the alphabet. Whether the text is
        // valid then depends on its unused bits, which other tests check.
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

TEST(Base64Test, WhiteSpaceAndUrlAlphabetAreRejected) {
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

constexpr int64_t kLimit = int64_t{1} << 24;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
using Context = std::unique_ptr<ZSTD_CCtx, FreeContext>;

std::string Compress(const std::string& bytes, const std::vector<std::pair<ZSTD_cParameter, int>>& parameters = {}) {
  const Context context(ZSTD_createCCtx());
  for (const auto& [parameter, value] : parameters) ZSTD_CCtx_setParameter(context.get(), parameter, value);
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress2(context.get(), frame.data(), frame.size(), bytes.data(), bytes.size());
  EXPECT_FALSE(ZSTD_isError(size));
  frame.resize(size);
  return frame;
}

std::string RandomBytes(size_t size, int values = 256) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random() % values);
  return bytes;
}

absl::StatusOr<std::string> Decompress(absl::string_view frame, int64_t raw_size, int64_t limit = kLimit) {
  // Copy the frame to memory of exactly its size, so that ASan detects a read past its end.
  const std::vector<uint8_t> exact(frame.begin(), frame.end());
  auto bytes = DecompressZstd(exact, raw_size, limit);
  if (!bytes.ok()) return bytes.status();
  return std::string(bytes->span().begin(), bytes->span().end());
}

auto Rejects(Reason reason) { return Fails(absl::StatusCode::kInvalidArgument, reason); }

TEST(ZstdFrameTest, DecompressesToWhatWentIn) {
  for (const size_t size : {0, 1, 2, 255, 256, 257, 65535, 65536, 300000}) {
    for (const int values : {1, 7, 256}) {
      const std::string bytes = RandomBytes(size, values);
      for (const int level : {-5, 1, 3, 19}) {
        for (const int checksum : {0, 1}) {
          const std::string frame =
              Compress(bytes, {{ZSTD_c_compressionLevel, level}, {ZSTD_c_checksumFlag, checksum}});
          ASSERT_OK_AND_ASSIGN(const std::string raw, Decompress(frame, static_cast<int64_t>(size)));
          ASSERT_EQ(raw, bytes) << size;
        }
      }
    }
  }
}

TEST(ZstdFrameTest, RawSizeMustBeTheFrames) {
  const std::string frame = Compress(RandomBytes(1000));
  for (const int64_t raw_size : {int64_t{0}, int64_t{999}, int64_t{1001}, int64_t{-1}, kLimit, INT64_MAX, INT64_MIN}) {
    const absl::Status status = Decompress(frame, raw_size).status();
    EXPECT_THAT(status, Rejects(Reason::kLength)) << raw_size;
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, "append.tensor.raw_size");
  }
}

TEST(ZstdFrameTest, TheLimitHolds) {
  const std::string frame = Compress(RandomBytes(1000));
  EXPECT_OK(Decompress(frame, 1000, 1000));
  EXPECT_THAT(Decompress(frame, 1000, 999), Rejects(Reason::kLength));
}

// 64 MiB of zeros in a few KiB, with an honest size and with a small one declared.
TEST(ZstdFrameTest, BombIsRejectedByItsSize) {
  const std::string frame = Compress(std::string(size_t{64} << 20, '\0'));
  ASSERT_LT(frame.size(), 10000u);
  EXPECT_THAT(Decompress(frame, int64_t{64} << 20), Rejects(Reason::kLength));
  EXPECT_THAT(Decompress(frame, 1000), Rejects(Reason::kLength));
}

// The frame's header declares less than its blocks contain: nothing may be written past the declared size.
TEST(ZstdFrameTest, BlocksThatHoldMoreThanTheHeaderSays) {
  std::string frame = Compress(RandomBytes(200), {{ZSTD_c_checksumFlag, 0}});
  // Single segment with one byte of content size (RFC 8878 section 3.1.1.1), which follows magic number and descriptor.
  ASSERT_EQ(frame[4], 0x20);
  ASSERT_EQ(static_cast<uint8_t>(frame[5]), 200);
  for (const int claimed : {0, 1, 100, 199, 201, 255}) {
    frame[5] = static_cast<char>(claimed);
    EXPECT_FALSE(Decompress(frame, claimed).ok()) << claimed;
  }
}

TEST(ZstdFrameTest, NoContentSize) {
  EXPECT_THAT(Decompress(Compress(RandomBytes(1000), {{ZSTD_c_contentSizeFlag, 0}}), 1000), Rejects(Reason::kEncoding));
}

TEST(ZstdFrameTest, MoreThanOneFrame) {
  const std::string frame = Compress(RandomBytes(1000));
  const std::string empty = Compress("");
  const std::string skippable("\x50\x2a\x4d\x18\x04\x00\x00\x00skip", 12);
  for (const std::string& text :
       {frame + frame, frame + empty, frame + skippable, frame + std::string(1, '\0'), frame + "tail"}) {
    EXPECT_THAT(Decompress(text, 1000), Rejects(Reason::kEncoding));
  }
  EXPECT_FALSE(Decompress(frame + frame, 2000).ok());
  EXPECT_FALSE(Decompress(skippable + frame, 1000).ok());
  EXPECT_FALSE(Decompress(empty + frame, 1000).ok());
  EXPECT_THAT(Decompress(empty + frame, 0), Rejects(Reason::kEncoding));
}

TEST(ZstdFrameTest, SkippableFramesOfEveryKind) {
  for (int kind = 0; kind < 16; ++kind) {
    std::string frame("\x50\x2a\x4d\x18\x04\x00\x00\x00skip", 12);
    frame[0] = static_cast<char>(0x50 + kind);
    EXPECT_THAT(Decompress(frame, 0), Rejects(Reason::kEncoding)) << kind;
    EXPECT_FALSE(Decompress(frame, 4).ok()) << kind;
  }
}

TEST(ZstdFrameTest, DictionaryId) {
  // A valid frame, except that a dictionary id is inserted into its header: flag 1, one byte after the descriptor.
  std::string frame = Compress(RandomBytes(200), {{ZSTD_c_checksumFlag, 0}});
  ASSERT_EQ(frame[4], 0x20);
  frame[4] = 0x21;
  frame.insert(5, 1, '\x07');
  EXPECT_THAT(Decompress(frame, 200), Rejects(Reason::kEncoding));
}

TEST(ZstdFrameTest, CutOffAtAnyLength) {
  for (const int checksum : {0, 1}) {
    const std::string frame = Compress(RandomBytes(700, 50), {{ZSTD_c_checksumFlag, checksum}});
    for (size_t size = 0; size < frame.size(); ++size) {
      ASSERT_THAT(Decompress(frame.substr(0, size), 700), Rejects(Reason::kEncoding)) << size;
    }
  }
}

TEST(ZstdFrameTest, AChecksummedFrameWithAnyBitFlippedIsRejectedOrTheSame) {
  const std::string bytes = RandomBytes(300, 50);
  const std::string frame = Compress(bytes, {{ZSTD_c_checksumFlag, 1}});
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    std::string flipped = frame;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const auto raw = Decompress(flipped, 300);
    // Some bits of the header have no effect. If the checksum flag is cleared, the checksum becomes trailing bytes,
    // which are rejected.
    if (raw.ok()) {
      EXPECT_EQ(*raw, bytes) << bit;
    } else {
      EXPECT_EQ(raw.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string NpyFile(const std::string& shape, size_t data) {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + '\n' + std::string(data, '\1');
}

TEST(PayloadShapeTest, OfAHeaderOrAsStated) {
  const std::string file = NpyFile("500, 3, 2", 3000);
  const std::string text = absl::Base64Escape(file);
  const std::vector<int64_t> shape = {500, 3, 2};
  EXPECT_EQ(PayloadShape({.encoding = Encoding::kNpy}, AsBytes(file))->axes, shape);
  EXPECT_EQ(PayloadShape({.encoding = Encoding::kBase64Npy}, AsBytes(text))->axes, shape);
  EXPECT_EQ(PayloadShape({.encoding = Encoding::kBase64, .shape = {7, 2, 1}}, {})->axes,
            (std::vector<int64_t>{7, 2, 1}));
  EXPECT_EQ(PayloadShape({.encoding = Encoding::kNpy}, AsBytes(file))->dtype, DType::kU8);
  EXPECT_THAT(PayloadShape({.encoding = Encoding::kBase64}, AsBytes(text)), Fails(kInvalid, Reason::kShape));
  EXPECT_THAT(PayloadShape({.encoding = Encoding::kNpy, .compression = Compression::kZstd}, AsBytes(file)),
              Fails(kInvalid, Reason::kShape));
  EXPECT_THAT(PayloadShape({.encoding = Encoding::kNpy}, AsBytes(text)), Fails(kInvalid, Reason::kEncoding));
  EXPECT_THAT(PayloadShape({.encoding = Encoding::kBase64Npy}, AsBytes(file)), Fails(kInvalid, Reason::kEncoding));
}

}  // namespace
}  // namespace routing_replay
