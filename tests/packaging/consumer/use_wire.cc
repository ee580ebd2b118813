// Uses the wire library: sizes of a geometry, a checksum, and a typed error.
#include <vector>

#include "expect.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

using namespace routing_replay;

int main() {
  const auto geometry = Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 3}, .num_experts = {60}, .top_k = {4}});
  EXPECT(geometry.ok());
  const Codec codec = geometry->default_codec();
  EXPECT(codec == Codec::kPacked);

  EXPECT(geometry->plane_bytes(1, 100, codec) == 100 * 4 * 6 / 8);
  EXPECT(geometry->FindOrdinal(3) == 1);

  // The expected value is the well-known CRC32C of the text "123456789".
  const std::vector<uint8_t> digits = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  EXPECT(Crc32c(digits) == 0xE3069283u);

  const auto invalid = Geometry::Create({.num_layers = 4, .moe_layer_ids = {4}, .num_experts = {60}, .top_k = {4}});
  EXPECT(GetErrorDetail(invalid.status())->reason == Reason::kField);
  EXPECT(GetErrorDetail(invalid.status())->layer == 4);
}
