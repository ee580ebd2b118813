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

}  // namespace
}  // namespace routing_replay
