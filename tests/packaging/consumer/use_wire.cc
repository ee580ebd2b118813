// Packs ids, takes a cut out of the middle, and unpacks it.
#include <vector>

#include "expect.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/plane.h"

using namespace routing_replay;

int main() {
  const auto geometry = Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 3}, .num_experts = {60}, .top_k = {4}});
  EXPECT(geometry.ok());
  const Codec codec = geometry->default_codec();
  EXPECT(codec == Codec::kPacked);

  constexpr int64_t kRows = 100, kFirst = 33, kCount = 20;
  std::vector<uint8_t> ids;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < 4; ++k) ids.push_back(static_cast<uint8_t>((row * 7 + k * 13) % 60));
  }
  std::vector<uint8_t> plane(geometry->plane_bytes(1, kRows, codec));
  EXPECT(PackPlane(*geometry, 1, codec, kRows, ids, absl::MakeSpan(plane)).ok());
  EXPECT(plane.size() == ids.size() * 6 / 8);

  const int32_t offset = geometry->cut_bit_offset(1, kFirst, codec);
  const auto cut = absl::MakeConstSpan(plane).subspan(kFirst * geometry->row_bits(1, codec) / 8,
                                                      geometry->cut_bytes(1, kFirst, kCount, codec));
  std::vector<uint8_t> back(kCount * 4);
  EXPECT(UnpackCut(*geometry, 1, codec, offset, kCount, cut, absl::MakeSpan(back)).ok());
  EXPECT(absl::MakeConstSpan(back) == absl::MakeConstSpan(ids).subspan(kFirst * 4, kCount * 4));

  // The check value that RFC 3720 and everyone else gives for these nine bytes.
  const std::vector<uint8_t> digits = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  EXPECT(Crc32c(digits) == 0xE3069283u);

  ids[5] = 60;
  const absl::Status refused = PackPlane(*geometry, 1, codec, kRows, ids, absl::MakeSpan(plane));
  EXPECT(GetErrorDetail(refused)->reason == Reason::kIdRange);
  EXPECT(GetErrorDetail(refused)->layer == 3);
}
