// codec_*: payloads of engines and of the wrappers around them, through their forms and the decoder.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/json/engine_forms.h"
#include "proto/wire/payload/engine_output.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {
namespace {

// A payload as the engine's adapter hands it to the decoder.
struct CodecCase {
  absl::StatusOr<Geometry> geometry = absl::UnknownError("");
  absl::Status refused;  // By what the adapter does before.
  TensorDescription tensor;
  DecodeOptions options;
  std::string payload;
  int64_t surplus_rows = 0;
  bool narrowest = false;  // SkyRL's wire knows one dtype for given ids.
};

// Dense layers are columns without a meaning. Where a file states no layers the payload does.
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

// Flat ids: which rows they are is counted.
absl::Status OpenFlat(const Json& input, CodecCase& c) {
  const auto layers = input.at("layers").get<int64_t>();
  const auto top_k = input.at("topk").get<int64_t>();
  const Json object = {{"shape", {layers, top_k}}, {"dtype", input.value("advertised_dtype", "int32")}};
  auto form = ObjectFormFromJson(ObjectDialect::kSgLang, object.dump());
  if (!form.ok()) return form.status();
  const auto rows = FlatRows(form->tensor, layers, top_k, BytesOf(c.payload));
  if (!rows.ok()) return rows.status();
  const int64_t prompt = input.value("prompt_tokens", input.value("tokens", int64_t{0}));
  const auto account = AccountRows({.prompt_tokens = prompt,
                                    .output_tokens = input.value("completion_tokens", int64_t{0}),
                                    .start = input.value("start_len", int64_t{0}),
                                    .rows = *rows});
  if (!account.ok()) return account.status();
  c.tensor = form->tensor;
  c.tensor.shape = {*rows, layers, top_k};
  c.options.row_start = account->row_start;
  c.options.take = account->take;
  c.surplus_rows = account->surplus_rows;
  return absl::OkStatus();
}

absl::Status OpenObject(const Json& value, ObjectDialect dialect, CodecCase& c) {
  Json described = value;
  if (value.is_object()) described.erase("data");
  const auto form = ObjectFormFromJson(dialect, described.dump());
  if (!form.ok()) return form.status();
  c.tensor = form->tensor;
  c.options.row_start = form->start;
  c.payload = value.at("data").get<std::string>();
  c.narrowest = dialect == ObjectDialect::kSkyRl;
  return absl::OkStatus();
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

absl::Status Open(const Json& input, ObjectDialect dialect, CodecCase& c) {
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
  const auto form = OpenNrlre1(BytesOf(c.payload));
  if (!form.ok()) return form.status();
  c.tensor = form->tensor;
  c.payload.erase(0, c.payload.size() - form->data.size());
  return absl::OkStatus();
}

CodecCase Parse(const Json& input, ObjectDialect dialect) {
  CodecCase c;
  c.refused = Open(input, dialect, c);
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
  if (!c.refused.ok()) return c.refused;
  if (!c.geometry.ok()) return c.geometry.status();
  if (c.narrowest) {
    const auto view = OpenTensor(c.tensor, BytesOf(c.payload), c.options.max_payload_bytes);
    if (!view.ok()) return view.status();
    if (absl::Status status = CheckNarrowestDType(*view); !status.ok()) return status;
  }
  return DecodeTensor(*c.geometry, c.tensor, BytesOf(c.payload), c.options);
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
    case Reason::kRowCount:
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
  // Where the file does not say why, any typed reason will do.
  if (detail.reason == Reason::kUnspecified) return Failed(absl::StrCat("no reason: ", decoded.status().message()));
  if (!expect.contains("reason")) return Passed();
  const std::vector<std::string> reasons = GoldenReasons(detail.reason);
  if (std::find(reasons.begin(), reasons.end(), expect.at("reason")) == reasons.end() ||
      (expect.contains("row") && place(detail.row) != expect["row"]) ||
      (expect.contains("layer") && place(detail.layer) != expect["layer"])) {
    return Failed(absl::StrCat("refused for ", ReasonName(detail.reason), " (", decoded.status().message(),
                               "), expected ", expect.dump()));
  }
  return Passed();
}

// Ids of every MoE layer of every recorded row against the expected tensor [rows][layers][K].
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

Outcome RunDecode(const Json& golden_case, ObjectDialect dialect) {
  const Json& expect = golden_case.at("expect");
  const CodecCase c = Parse(golden_case.at("input"), dialect);
  if (expect.value("error", false)) return RunError(c, expect);
  if (c.surplus_rows != expect.value("dropped_tail_rows", int64_t{0})) {
    return Failed(absl::StrCat(c.surplus_rows, " rows dropped at the end"));
  }
  const auto decoded = Decode(c);
  if (!decoded.ok()) {
    return expect.value("may_refuse", false) ? Passed() : Failed(absl::StrCat("refused: ", decoded.status().message()));
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

Outcome Run(const Json& golden_case) { return RunDecode(golden_case, ObjectDialect::kAny); }
Outcome RunSkyRl(const Json& golden_case) { return RunDecode(golden_case, ObjectDialect::kSkyRl); }
Outcome RunMsSwift(const Json& golden_case) { return RunDecode(golden_case, ObjectDialect::kMsSwift); }

// NeMo-RL's encoder takes the dtype from E.
Outcome RunNemo(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  if (input.contains("payload")) return Run(golden_case);
  const Json& experts = input.at("num_experts");
  const char* ours = !experts.is_null() && experts.get<int64_t>() <= 128 ? "int8" : "int16";
  const Json& theirs = golden_case.at("expect").at("wire_dtype");
  return theirs == ours ? Passed() : Failed(absl::StrCat("dtype ", ours, ", expected ", theirs.dump()));
}

// prime-rl's own cut and padding: a cut is ours, too; rows of padding are never stored.
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

// Arrays that prime-rl's encoder refuses; our decoder refuses them, too.
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
  return absl::IsInvalidArgument(decoded.status()) ? Passed() : Failed("accepted, expected a refusal");
}

Outcome RunPrimeRl(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  if (input.contains("encoder_input")) return RunPrimeRlEncoder(input["encoder_input"]);
  if (input.contains("data")) return RunPrimeRlRows(input, golden_case.at("expect"));
  return RunDecode(golden_case, ObjectDialect::kPrimeRl);
}

}  // namespace

Kind CodecKind() { return {{"codec_sglang", "codec_sglang_wire_dtype", "codec_vllm"}, Run}; }
Kind CodecMsSwiftKind() { return {{"codec_msswift"}, RunMsSwift}; }
Kind CodecNemoKind() { return {{"codec_nemo"}, RunNemo}; }
Kind CodecPrimeRlKind() { return {{"codec_primerl"}, RunPrimeRl}; }
Kind CodecSkyRlKind() { return {{"codec_skyrl"}, RunSkyRl}; }

}  // namespace routing_replay::golden
