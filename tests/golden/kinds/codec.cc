// codec_vllm, codec_sglang: engine payloads through the decoder.
#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {
namespace {

// A payload as the engine's adapter hands it to the decoder.
struct CodecCase {
  absl::StatusOr<Geometry> geometry = absl::UnknownError("");
  TensorDescription tensor;
  DecodeOptions options;
  std::string payload;
  int64_t layers = 0;
  int64_t top_k = 0;
  int64_t dropped_rows = 0;  // At the end, by the adapter.
};

// Dense layers are columns without a meaning.
Geometry::Options GeometryOptions(const Json& input) {
  Geometry::Options options{.num_layers = input.at("layers").get<int32_t>(),
                            .moe_layer_ids = {},
                            .num_experts = {input.at("num_experts").get<int32_t>()},
                            .top_k = {input.at("topk").get<int32_t>()}};
  const auto dense = input.value("dense_layers", std::vector<int32_t>{});
  for (int32_t i = 0; i < options.num_layers; ++i) {
    if (std::find(dense.begin(), dense.end(), i) == dense.end()) options.moe_layer_ids.push_back(i);
  }
  return options;
}

CodecCase Parse(const Json& input) {
  CodecCase c{.geometry = Geometry::Create(GeometryOptions(input)),
              .payload = input.at("payload").get<std::string>(),
              .layers = input.at("layers").get<int64_t>(),
              .top_k = input.at("topk").get<int64_t>()};
  c.tensor.layer_basis = LayerBasis::kAllLayers;
  if (input.at("encoding") == "BASE64_NPY") {
    c.tensor.encoding = Encoding::kBase64Npy;
    c.options.expected_rows = input.at("tokens").get<int64_t>() - 1;
    return c;
  }
  c.options.row_start = input.at("start_len").get<int64_t>();
  const int64_t tokens = input.at("prompt_tokens").get<int64_t>() + input.at("completion_tokens").get<int64_t>();
  c.options.expected_rows = std::max<int64_t>(0, tokens - 1 - c.options.row_start);
  // A source that holds a row for the last token too gives it to its adapter, which drops it.
  std::string bytes;
  if (absl::Base64Unescape(c.payload, &bytes) &&
      static_cast<int64_t>(bytes.size()) == (*c.options.expected_rows + 1) * c.layers * c.top_k * 4) {
    c.dropped_rows = 1;
    ++*c.options.expected_rows;
  }
  c.tensor.encoding = Encoding::kBase64;
  c.tensor.dtype = DType::kI32;
  c.tensor.shape = {*c.options.expected_rows, c.layers, c.top_k};
  return c;
}

absl::StatusOr<DecodedRows> Decode(const CodecCase& c) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(c.payload.data());
  return DecodeTensor(*c.geometry, c.tensor, {bytes, c.payload.size()}, c.options);
}

// The files' names of a refusal.
std::vector<std::string> GoldenReasons(Reason reason) {
  switch (reason) {
    case Reason::kEncoding:
      return {"encoding"};
    case Reason::kDType:
      return {"dtype"};
    case Reason::kShape:
      return {"shape"};
    case Reason::kLength:
      return {"length"};
    case Reason::kIdRange:
      return {"range"};
    case Reason::kDuplicateId:
      return {"duplicate"};
    case Reason::kPartialRow:
      // For a source that marks no rows, -1 is just a negative id; the decoder does not know its source.
      return {"partial sentinel", "range"};
    default:
      return {};
  }
}

Outcome RunError(const CodecCase& c, const Json& expect) {
  const auto decoded = Decode(c);
  if (decoded.ok()) return expect.value("may_accept", false) ? Passed() : Failed("accepted, expected a refusal");
  const ErrorDetail detail = GetErrorDetail(decoded.status()).value_or(ErrorDetail{});
  const auto place = [](auto number) { return number ? Json(*number) : Json(); };
  const std::vector<std::string> reasons = GoldenReasons(detail.reason);
  if (std::find(reasons.begin(), reasons.end(), expect.at("reason")) == reasons.end() ||
      (expect.contains("row") && place(detail.row) != expect["row"]) ||
      (expect.contains("layer") && place(detail.layer) != expect["layer"])) {
    return Failed(absl::StrCat("refused for ", ReasonName(detail.reason), " (", decoded.status().message(),
                               "), expected ", expect.dump()));
  }
  return Passed();
}

// Ids of every MoE layer of every kept row against the expected tensor [rows][layers][K].
Outcome CompareIds(const CodecCase& c, const DecodedRows& decoded, int64_t kept_rows, const Json& expect) {
  std::string ids;
  if (!absl::Base64Unescape(expect.at("ids_int32_le").get<std::string>(), &ids)) return Failed("ids are no base64");
  int64_t rows = 0;
  for (const Block& block : decoded.blocks) {
    for (int32_t ordinal = 0; ordinal < c.geometry->num_moe_layers(); ++ordinal) {
      const LayerRouting& layer = c.geometry->layer(ordinal);
      const absl::Span<const uint8_t> plane = block.view().plane(*c.geometry, ordinal);
      for (int64_t i = 0; i < block.rows.size() * c.top_k; ++i) {
        const int64_t row = block.rows.begin - decoded.rows.begin + i / c.top_k;
        if (row >= kept_rows) break;
        const size_t offset = 4 * ((row * c.layers + layer.layer_id) * c.top_k + i % c.top_k);
        const int32_t ours = layer.id_bytes() == 1 ? plane[i] : plane[2 * i] | plane[2 * i + 1] << 8;
        int32_t theirs = -1;
        if (offset + 4 <= ids.size()) std::memcpy(&theirs, ids.data() + offset, 4);
        if (ours != theirs) {
          return Failed(absl::StrCat("row ", row, ", layer ", layer.layer_id, ", slot ", i % c.top_k, " is ", ours,
                                     ", expected ", theirs));
        }
      }
    }
    rows += block.rows.size();
  }
  return rows == decoded.rows.size() ? Passed() : Failed("rows without a block");
}

Outcome Run(const Json& golden_case) {
  const Json& expect = golden_case.at("expect");
  const CodecCase c = Parse(golden_case.at("input"));
  if (!c.geometry.ok()) return Failed(absl::StrCat("geometry refused: ", c.geometry.status().message()));
  if (expect.value("error", false)) return RunError(c, expect);
  if (c.dropped_rows != expect.value("dropped_tail_rows", int64_t{0})) {
    return Failed(absl::StrCat(c.dropped_rows, " rows dropped at the end"));
  }
  const auto decoded = Decode(c);
  if (!decoded.ok()) {
    return expect.value("may_refuse", false) ? Passed() : Failed(absl::StrCat("refused: ", decoded.status().message()));
  }
  const int64_t rows = decoded->rows.size() - c.dropped_rows;
  const Json shape = {rows, c.layers, c.top_k};
  if (shape != expect.at("shape")) {
    return Failed(absl::StrCat("shape is ", shape.dump(), ", expected ", expect["shape"].dump()));
  }
  if (decoded->rows.begin != expect.value("row_start", int64_t{0})) {
    return Failed(absl::StrCat("rows start at ", decoded->rows.begin));
  }
  return CompareIds(c, *decoded, rows, expect);
}

}  // namespace

Kind CodecKind() { return {{"codec_sglang", "codec_vllm"}, Run}; }

}  // namespace routing_replay::golden
