#include "proto/wire/payload/tensor_view.h"

#include "absl/strings/escaping.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

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

TEST(PayloadShapeTest, FlatRowsAreCountedByLength) {
  for (const DType dtype : {DType::kU8, DType::kI16, DType::kI32, DType::kI64}) {
    const size_t element = dtype == DType::kU8 ? 1 : dtype == DType::kI16 ? 2 : dtype == DType::kI32 ? 4 : 8;
    for (size_t rows = 0; rows < 9; ++rows) {
      for (size_t more = 0; more < 2; ++more) {
        const std::string raw(rows * 5 * element + more, '\1');
        const std::string text = absl::Base64Escape(raw);
        for (const auto& [encoding, payload] : {std::pair(Encoding::kRaw, raw), std::pair(Encoding::kBase64, text)}) {
          const auto found = FlatRows({.encoding = encoding, .dtype = dtype}, 5, 1, AsBytes(payload));
          if (more == 0) {
            EXPECT_EQ(*found, static_cast<int64_t>(rows));
          } else {
            EXPECT_THAT(found, Fails(kInvalid, element == 1 ? Reason::kLength : Reason::kEncoding));
          }
        }
      }
    }
  }
  EXPECT_THAT(FlatRows({.dtype = DType::kI32}, 5, 1, AsBytes(std::string(24, 'a'))), Fails(kInvalid, Reason::kLength));
  EXPECT_THAT(FlatRows({.encoding = Encoding::kBase64, .dtype = DType::kU8}, 1, 1, AsBytes("abc")),
              Fails(kInvalid, Reason::kEncoding));
  EXPECT_THAT(FlatRows({.dtype = DType::kU8}, 0, 1, {}), Fails(kInvalid, Reason::kShape));
  EXPECT_THAT(FlatRows({}, 1, 1, {}), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(FlatRows({.encoding = Encoding::kNpy, .dtype = DType::kU8}, 1, 1, {}), Fails(kInvalid, Reason::kField));
}

}  // namespace
}  // namespace routing_replay
