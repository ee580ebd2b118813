// codec_*: decodes payloads of engines and of the formats that frameworks wrap them in. The part of the Python adapters
// that the cases need is repeated here; client/python/tests/golden_test.py runs the adapters themselves over the same
// files.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/dtype_named.h"

namespace routing_replay::golden {
namespace {

enum class Dialect { kAny, kPrimeRl, kSkyRl, kMsSwift, kSgLang };

// Reads shape and dtype of an object in a framework's dialect. The shape of SGLang is that of one row: [layers, K].
absl::Status Describe(Dialect dialect, const Json& object, TensorDescription& tensor) {
  if (!object.is_object()) return Invalid("append.tensor", "must be an object");
  if (dialect == Dialect::kMsSwift && object.value("__ndarray__", Json()) != true) {
    return Invalid("append.tensor.__ndarray__", "must be true");
  }
  const Json shape = object.value("shape", Json());
  const bool plain = shape.is_array() && std::all_of(shape.begin(), shape.end(), [](const Json& axis) {
                       return axis.is_number_integer() && axis >= 0 && axis <= kMaxRows;
                     });
  if (!plain || shape.size() != (dialect == Dialect::kSgLang ? 2U : 3U)) {
    return Invalid(Reason::kShape, "append.tensor.shape", "must be a list of axes");
  }
  const Json named = object.value("dtype", dialect == Dialect::kPrimeRl ? Json("uint8") : Json());
  const DType dtype = named.is_string() ? DTypeNamed(named.get<std::string>()) : DType::kUnspecified;
  const bool narrow = dtype == DType::kU8 || dtype == DType::kI32;
  if (dtype == DType::kUnspecified || (dialect == Dialect::kSkyRl && !narrow && dtype != DType::kI16) ||
      (dialect == Dialect::kSgLang && !narrow && dtype != DType::kU16)) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "is not one of the dialect");
  }
  tensor = {.encoding = Encoding::kBase64, .dtype = dtype, .shape = shape.get<std::vector<int64_t>>()};
  return absl::OkStatus();
}

// A payload as the engine's adapter passes it to the decoder.
struct CodecCase {
  absl::StatusOr<Geometry> geometry = absl::UnknownError("");
  absl::Status rejected;  // If the adapter rejects it before decoding.
  TensorDescription tensor;
  DecodeOptions options;
  std::string payload;
  int64_t surplus_rows = 0;
  bool narrowest = false;  // Whether the dtype must be the narrowest for the ids, as on SkyRL's wire.
};

// Returns a geometry in which all `layers` layers are MoE layers, except those that the case lists as dense. The ids of
// dense layers in a payload are arbitrary.
Geometry::Options GeometryOptions(const Json& input, int64_t layers, int64_t top_k) {
  Geometry::Options options{.num_layers = static_cast<int32_t>(layers),
                            .moe_layer_ids = {},
                            .num_experts = {input.at("num_experts").get<int32_t>()},
                            .top_k = {static_cast<int32_t>(top_k)}};
  const auto dense = input.value("dense_layers", std::vector<int32_t>{});
  for (int32_t i = 0; i < options.num_layers; ++i) {
    if (std::find(dense.begin(), dense.end(), i) == dense.end()) options.moe_layer_ids.push_back(i);
  }
  return options;
}

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Prepares SGLang's flat ids, whose length determines the number of rows. Drops a row for the last token, which the
// model never processed.
absl::Status OpenFlat(const Json& input, CodecCase& c) {
  const auto layers = input.at("layers").get<int64_t>();
  const auto top_k = input.at("topk").get<int64_t>();
  const Json object = {{"shape", {layers, top_k}}, {"dtype", input.value("advertised_dtype", "int32")}};
  if (absl::Status status = Describe(Dialect::kSgLang, object, c.tensor); !status.ok()) return status;
  const int64_t padding = std::count(c.payload.begin(), c.payload.end(), '=');
  const int64_t bytes = static_cast<int64_t>(c.payload.size()) / 4 * 3 - padding;
  const int64_t row_bytes = layers * top_k * DTypeBytes(c.tensor.dtype);
  if (c.payload.size() % 4 != 0) return Invalid(Reason::kEncoding, "payload", "must be base64");
  if (bytes % row_bytes != 0) {
    const bool inside = bytes % DTypeBytes(c.tensor.dtype) != 0;
    return Invalid(inside ? Reason::kEncoding : Reason::kLength, "payload", "must be whole rows");
  }
  const int64_t rows = bytes / row_bytes;
  c.tensor.shape = {rows, layers, top_k};
  const int64_t tokens =
      input.value("prompt_tokens", input.value("tokens", int64_t{0})) + input.value("completion_tokens", int64_t{0});
  c.options.row_start = input.value("start_len", int64_t{0});
  c.surplus_rows = rows > 0 && c.options.row_start != 1 && c.options.row_start + rows == tokens ? 1 : 0;
  c.options.take = {0, rows - c.surplus_rows};
  if (rows - c.surplus_rows == std::max<int64_t>(0, tokens - 1 - c.options.row_start)) return absl::OkStatus();
  return Invalid(Reason::kRowCount, "append.rows", "must be those of the tokens");
}

absl::Status OpenObject(const Json& value, Dialect dialect, CodecCase& c) {
  if (absl::Status status = Describe(dialect, value, c.tensor); !status.ok()) return status;
  c.options.row_start = value.value("start", int64_t{0});
  c.payload = value.at("data").get<std::string>();
  c.narrowest = dialect == Dialect::kSkyRl;
  return absl::OkStatus();
}

// nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>
absl::Status OpenNrlre1(CodecCase& c) {
  const std::vector<std::string> parts = absl::StrSplit(c.payload, absl::MaxSplits(':', 3));
  if (parts.size() != 4 || parts[0] != "nrlre1") return Invalid(Reason::kEncoding, "payload", "must be nrlre1");
  if (parts[1] != "int8" && parts[1] != "int16" && parts[1] != "int32") {
    return Invalid(Reason::kDType, "payload", "must be int8, int16 or int32");
  }
  Json shape = Json::array();
  for (const absl::string_view word : absl::StrSplit(parts[2], 'x')) {
    int64_t axis = -1;
    const bool digits = std::all_of(word.begin(), word.end(), absl::ascii_isdigit);
    shape.push_back(digits && absl::SimpleAtoi(word, &axis) ? axis : -1);
  }
  c.payload = parts[3];
  return Describe(Dialect::kAny, {{"shape", shape}, {"dtype", parts[1]}}, c.tensor);
}

// SkyRL sends ids in the narrowest dtype that holds them.
absl::Status CheckNarrowest(const TensorView& tensor) {
  int64_t largest = 0;
  for (int64_t i = 0; i < tensor.rows * tensor.row_elements(); ++i) {
    const int64_t id = ElementAt(tensor.dtype, tensor.elements.data(), i);
    if (id < 0) return Invalid(Reason::kIdRange, "payload", "must be at least 0");
    largest = std::max(largest, id);
  }
  const DType expected = largest <= UINT8_MAX ? DType::kU8 : largest <= INT16_MAX ? DType::kI16 : DType::kI32;
  return tensor.dtype == expected ? absl::OkStatus() : Invalid(Reason::kDType, "append.tensor.dtype", "is too wide");
}

void AppendIds(const Json& value, std::string& bytes) {
  if (value.is_array()) {
    for (const Json& item : value) AppendIds(item, bytes);
    return;
  }
  const auto id = value.get<int64_t>();
  bytes.append(reinterpret_cast<const char*>(&id), sizeof(id));
}

absl::Status OpenNested(const Json& rows, CodecCase& c) {
  c.tensor = {.dtype = DType::kI64, .shape = {}};
  for (const Json* axis = &rows; axis->is_array(); axis = &axis->at(0)) {
    c.tensor.shape.push_back(static_cast<int64_t>(axis->size()));
  }
  AppendIds(rows, c.payload);
  return absl::OkStatus();
}

absl::Status Open(const Json& input, Dialect dialect, CodecCase& c) {
  const Json& payload = input.at("payload");
  const std::string encoding = input.at("encoding");
  if (encoding == "object") return OpenObject(payload, dialect, c);
  if (encoding == "nested_list") return OpenNested(payload, c);
  c.payload = payload.get<std::string>();
  if (encoding == "BASE64") return OpenFlat(input, c);
  if (encoding == "BASE64_NPY") {
    c.tensor.encoding = Encoding::kBase64Npy;
    c.options.expected_rows = input.at("tokens").get<int64_t>() - 1;
    return absl::OkStatus();
  }
  return OpenNrlre1(c);
}

CodecCase Parse(const Json& input, Dialect dialect) {
  CodecCase c;
  c.rejected = Open(input, dialect, c);
  int64_t layers = input.value("layers", int64_t{0}), top_k = input.value("topk", int64_t{0});
  if (layers == 0 && c.tensor.shape.size() == 3) {
    layers = c.tensor.shape[1];
    top_k = c.tensor.shape[2];
  }
  if (layers > 0) c.geometry = Geometry::Create(GeometryOptions(input, layers, top_k));
  c.tensor.layer_basis = LayerBasis::kAllLayers;
  return c;
}

absl::StatusOr<DecodedRows> Decode(const CodecCase& c) {
  if (!c.rejected.ok()) return c.rejected;
  if (!c.geometry.ok()) return c.geometry.status();
  if (c.narrowest) {
    const auto view = OpenTensor(c.tensor, BytesOf(c.payload), c.options.max_payload_bytes);
    if (!view.ok()) return view.status();
    if (absl::Status status = CheckNarrowest(*view); !status.ok()) return status;
  }
  return DecodeTensor(*c.geometry, c.tensor, BytesOf(c.payload), c.options);
}

// Returns the names that golden files may use for this reason of a rejection.
std::vector<std::string> GoldenReasons(Reason reason) {
  switch (reason) {
    case Reason::kEncoding:
      return {"encoding"};
    case Reason::kDType:
      return {"dtype"};
    case Reason::kShape:
      return {"shape"};
    case Reason::kLength:
    case Reason::kRowCount:
      return {"length"};
    case Reason::kIdRange:
      return {"range"};
    case Reason::kDuplicateId:
      return {"duplicate"};
    case Reason::kPartialRow:
      // Some engines mark missing rows with -1, for others -1 is an invalid id like any other. The decoder does not
      // know which engine sent the rows, so both names are right.
      return {"partial sentinel", "range"};
    default:
      return {};
  }
}

Outcome RunError(const CodecCase& c, const Json& expect) {
  const auto decoded = Decode(c);
  if (decoded.ok()) return expect.value("may_accept", false) ? Passed() : Failed("accepted, expected a rejection");
  const ErrorDetail detail = GetErrorDetail(decoded.status()).value_or(ErrorDetail{});
  const auto place = [](auto number) { return number ? Json(*number) : Json(); };
  // If the case states no reason, any typed reason passes.
  if (detail.reason == Reason::kUnspecified) return Failed(absl::StrCat("no reason: ", decoded.status().message()));
  if (!expect.contains("reason")) return Passed();
  const std::vector<std::string> reasons = GoldenReasons(detail.reason);
  if (std::find(reasons.begin(), reasons.end(), expect.at("reason")) == reasons.end() ||
      (expect.contains("row") && place(detail.row) != expect["row"]) ||
      (expect.contains("layer") && place(detail.layer) != expect["layer"])) {
    return Failed(absl::StrCat("rejected for ", ReasonName(detail.reason), " (", decoded.status().message(),
                               "), expected ", expect.dump()));
  }
  return Passed();
}

// Compares the ids of every MoE layer of every recorded row with the expected tensor [rows][layers][K].
Outcome CompareIds(const CodecCase& c, const DecodedRows& decoded, const Json& expect) {
  std::string ids;
  if (!absl::Base64Unescape(expect.at("ids_int32_le").get<std::string>(), &ids)) return Failed("ids are no base64");
  const int64_t layers = c.geometry->num_layers();
  int64_t rows = 0;
  for (const Block& block : decoded.blocks) {
    for (int32_t ordinal = 0; ordinal < c.geometry->num_moe_layers(); ++ordinal) {
      const LayerRouting& layer = c.geometry->layer(ordinal);
      const absl::Span<const uint8_t> plane = block.view().plane(*c.geometry, ordinal);
      for (int64_t i = 0; i < block.rows.size() * layer.top_k; ++i) {
        const int64_t row = block.rows.begin - decoded.rows.begin + i / layer.top_k;
        const size_t offset = 4 * ((row * layers + layer.layer_id) * layer.top_k + i % layer.top_k);
        const int32_t ours = layer.id_bytes() == 1 ? plane[i] : plane[2 * i] | plane[2 * i + 1] << 8;
        int32_t theirs = -1;
        if (offset + 4 <= ids.size()) std::memcpy(&theirs, ids.data() + offset, 4);
        if (ours != theirs) {
          return Failed(absl::StrCat("row ", row, ", layer ", layer.layer_id, ", slot ", i % layer.top_k, " is ", ours,
                                     ", expected ", theirs));
        }
      }
    }
    rows += block.rows.size();
  }
  const int64_t unrecorded = TotalRows(decoded.unrecorded);
  return rows + unrecorded == decoded.rows.size() ? Passed() : Failed("rows without a block");
}

Outcome RunDecode(const Json& golden_case, Dialect dialect) {
  const Json& expect = golden_case.at("expect");
  const CodecCase c = Parse(golden_case.at("input"), dialect);
  if (expect.value("error", false)) return RunError(c, expect);
  if (c.surplus_rows != expect.value("dropped_tail_rows", int64_t{0})) {
    return Failed(absl::StrCat(c.surplus_rows, " rows dropped at the end"));
  }
  const auto decoded = Decode(c);
  if (!decoded.ok()) {
    return expect.value("may_refuse", false) ? Passed()
                                             : Failed(absl::StrCat("rejected: ", decoded.status().message()));
  }
  const Json shape = {decoded->rows.size(), c.geometry->num_layers(), c.geometry->layer(0).top_k};
  if (shape != expect.at("shape")) {
    return Failed(absl::StrCat("shape is ", shape.dump(), ", expected ", expect["shape"].dump()));
  }
  if (decoded->rows.begin != expect.value("row_start", int64_t{0})) {
    return Failed(absl::StrCat("rows start at ", decoded->rows.begin));
  }
  std::vector<int64_t> missing;
  for (const RowRange range : decoded->unrecorded) {
    for (int64_t row = range.begin; row < range.end; ++row) missing.push_back(row);
  }
  if (missing != expect.value("rows_without_route", std::vector<int64_t>())) {
    return Failed(absl::StrCat(missing.size(), " rows without a route"));
  }
  return CompareIds(c, *decoded, expect);
}

Outcome RunCodec(const Json& golden_case) { return RunDecode(golden_case, Dialect::kAny); }
Outcome RunSkyRl(const Json& golden_case) { return RunDecode(golden_case, Dialect::kSkyRl); }
Outcome RunMsSwift(const Json& golden_case) { return RunDecode(golden_case, Dialect::kMsSwift); }

// A case without a payload states which dtype NeMo-RL's encoder chooses for a number of experts; it must be the one
// computed here.
Outcome RunNemo(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  if (input.contains("payload")) return RunCodec(golden_case);
  const Json& experts = input.at("num_experts");
  const char* ours = !experts.is_null() && experts.get<int64_t>() <= 128 ? "int8" : "int16";
  const Json& theirs = golden_case.at("expect").at("wire_dtype");
  return theirs == ours ? Passed() : Failed(absl::StrCat("dtype ", ours, ", expected ", theirs.dump()));
}

// prime-rl cuts rows off a tensor, or pads it with rows. Our code must keep the same rows; the padding is not compared,
// because we never store any.
Outcome RunPrimeRlRows(const Json& input, const Json& expect) {
  std::string bytes, expected;
  if (!absl::Base64Unescape(input.at("data").get<std::string>(), &bytes) ||
      !absl::Base64Unescape(expect.at("data").get<std::string>(), &expected)) {
    return Failed("rows are no base64");
  }
  const auto shape = input.at("shape").get<std::vector<int64_t>>();
  auto view = OpenTensor({.dtype = DType::kU8, .shape = shape}, BytesOf(bytes), 1 << 20);
  if (!view.ok()) return Failed(std::string(view.status().message()));
  const int64_t wanted =
      input.value("keep_rows", input.value("tokens", shape[0] + input.value("pad_rows", int64_t{0})));
  if (absl::Status status = TakeSlots({0, std::min(wanted, shape[0])}, *view); !status.ok()) {
    return Failed(std::string(status.message()));
  }
  const bool same = std::equal(view->elements.begin(), view->elements.end(), BytesOf(expected).begin());
  const bool padded = static_cast<int64_t>(expected.size()) == wanted * view->row_elements();
  return same && padded ? Passed() : Failed("other rows");
}

// Arrays that prime-rl's encoder rejects must be rejected by our decoder, too.
Outcome RunPrimeRlEncoder(const std::string& input) {
  static const auto& kCases = *new std::map<std::string, std::pair<TensorDescription, size_t>>{
      {"negative", {{.dtype = DType::kI32, .shape = {1, 1, 1}}, 4}},
      {"above-uint16", {{.dtype = DType::kI32, .shape = {1, 1, 1}}, 4}},
      {"two-dims", {{.dtype = DType::kI32, .shape = {1, 1}}, 4}},
      {"float", {{.shape = {1, 1, 1}}, 4}},
  };
  const auto found = kCases.find(input);
  if (found == kCases.end()) return Failed(absl::StrCat("unknown encoder input ", input));
  const int32_t id = input == "negative" ? -2 : 65536;
  std::string bytes(reinterpret_cast<const char*>(&id), sizeof(id));
  const auto decoded = DecodeTensor(Geometry::Uniform(1, 65535, 1), found->second.first, BytesOf(bytes), {});
  return absl::IsInvalidArgument(decoded.status()) ? Passed() : Failed("accepted, expected a rejection");
}

Outcome RunPrimeRl(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  if (input.contains("encoder_input")) return RunPrimeRlEncoder(input["encoder_input"]);
  if (input.contains("data")) return RunPrimeRlRows(input, golden_case.at("expect"));
  return RunDecode(golden_case, Dialect::kPrimeRl);
}

}  // namespace

Kind CodecKind() { return {{"codec_sglang", "codec_sglang_wire_dtype", "codec_vllm"}, RunCodec}; }
Kind CodecMsSwiftKind() { return {{"codec_msswift"}, RunMsSwift}; }
Kind CodecNemoKind() { return {{"codec_nemo"}, RunNemo}; }
Kind CodecPrimeRlKind() { return {{"codec_primerl"}, RunPrimeRl}; }
Kind CodecSkyRlKind() { return {{"codec_skyrl"}, RunSkyRl}; }

}  // namespace routing_replay::golden
