// Reads the description of a plan from JSON. Errors name fields as the description does.
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/fields.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;

// Returns the field that a status names; "" if there is none.
std::string FieldOf(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail ? detail->field : "";
}

// Replaces the field's name in a status by its name in the description.
absl::Status WithField(const absl::Status& status, absl::string_view field) {
  auto detail = GetErrorDetail(status);
  if (!detail) return status;
  absl::string_view what = status.message();
  const bool named = absl::ConsumePrefix(&what, absl::StrCat(detail->field, ": "));
  detail->field = std::string(field);
  return MakeError(status.code(), named ? absl::StrCat(field, ": ", what) : std::string(what), *detail);
}

// Reads a layout: the text form, or a list of stages, each a list of names.
absl::StatusOr<PipelineLayout> PipelineLayoutFromJson(const Json& json) {
  const absl::Status wrong = Invalid("split.layout", "must be a text or a list of lists of names");
  if (json.is_string()) return ParsePipelineLayout(json.get<std::string>());
  if (!json.is_array()) return wrong;
  std::vector<std::vector<std::string>> stages;
  for (const Json& stage : json) {
    if (!stage.is_array()) return wrong;
    std::vector<std::string>& names = stages.emplace_back();
    for (const Json& name : stage) {
      if (!name.is_string()) return wrong;
      names.push_back(name.get<std::string>());
    }
  }
  return PipelineLayoutFromNames(stages);
}

// Reads the fields of fields.h.
class FieldReader {
 public:
  explicit FieldReader(JsonObject& object) : object_(object) {}

  template <typename Value>
  void operator()(const char* name, Value& value) {
    if constexpr (std::is_enum_v<Value>) {
      object_.Read(name, ChoicesOf(value), value);
    } else {
      object_.Read(name, value);
    }
  }
  template <typename Value>
  void operator()(const char* name, Value& value, const Choices<Value>& choices) {
    object_.Read(name, choices, value);
  }
  // Bounds are checked by the code that uses the value.
  template <typename Value>
  void operator()(const char* name, Value& value, Bounds) {
    object_.Read(name, value);
  }
  void operator()(const char* name, bool& value, FlagOrFormat) {
    const nlohmann::json* json = object_.Find(name);
    if (json != nullptr && json->is_string()) {
      value = SkyRlFp8Enabled(json->get<std::string>());
    } else {
      object_.Read(name, value);
    }
  }
  void operator()(const char* name, std::optional<PipelineLayout>& value) {
    if (const nlohmann::json* json = object_.Find(name)) Take(PipelineLayoutFromJson(*json), value);
  }
  void operator()(const char* name, std::optional<HybridPattern>& value) {
    std::string text;
    object_.Read(name, text);
    if (object_.Find(name) != nullptr && object_.status().ok()) Take(ParseHybridPattern(text), value);
  }

  // Returns the error of the JSON object; if it has none, the first error of parsing a layout or a hybrid pattern.
  absl::Status status() const { return object_.status().ok() ? status_ : object_.status(); }

 private:
  template <typename Value>
  void Take(absl::StatusOr<Value> parsed, std::optional<Value>& value) {
    status_.Update(parsed.status());
    if (parsed.ok()) value = *std::move(parsed);
  }

  JsonObject& object_;
  absl::Status status_;
};

// Reads an object that may have only the fields of its struct; those in `required` must be present.
template <typename Struct>
absl::Status ReadFields(const nlohmann::json& json, absl::string_view path, Struct& of,
                        const char* required = nullptr) {
  JsonObject object(json, path);
  if (required != nullptr) object.Require(required);
  FieldReader reader(object);
  Fields(reader, of);
  return reader.status();
}

// "micro_batch": what the trainer passed, completed by what a named padding policy predicts.

absl::Status InMicroBatch(const absl::Status& status) {
  const std::string field = FieldOf(status);
  const bool there = field.empty() || field == "micro_batch" || absl::StartsWith(field, "micro_batch.");
  return there ? status : WithField(status, absl::StrCat("micro_batch.", field));
}

class MicroBatchReader {
 public:
  explicit MicroBatchReader(const Json& json) : json_(json), object_(json, "micro_batch") {}

  absl::StatusOr<DescribedMicroBatch> Read() {
    ReadChoices();
    ReadShape();
    RR_RETURN_IF_ERROR(object_.status());
    for (auto step :
         {&MicroBatchReader::ReadPolicy, &MicroBatchReader::ReadSequences, &MicroBatchReader::ApplyPolicy}) {
      RR_RETURN_IF_ERROR((this->*step)());
    }
    if (!has_pieces_) out_.pieces.clear();
    return std::move(out_);
  }

 private:
  // Does not use object_.Find, which makes a field known: a field of the other format must be rejected as unknown.
  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }
  bool packed() const { return layout_.format == TokenFormat::kThd; }

  void ReadChoices() {
    policy_json_ = object_.Find("padding");
    sequences_ = object_.Find("sequences");
    if (policy_json_ == nullptr) {
      object_.Require("format");
      object_.Require("partition");
    }
    object_.Require("sequences");
    Fields(FieldReader(object_), layout_);
    object_.Read("local_cp_size", layout_.cp_size);
    object_.Read("last_row_filler", out_.last_row_filler);
  }

  // Reads the shape that the trainer passed. With a policy, shape and format may be left out.
  void ReadShape() {
    const bool rectangle = Has("batch_size") || Has("padded_length");
    format_passed_ = Has("format");
    if (!format_passed_ && rectangle) layout_.format = TokenFormat::kBshd;
    shape_passed_ = policy_json_ == nullptr || rectangle || Has("total_rows") || Has("cu_seqlens_padded");
    if (!shape_passed_) return;
    object_.Require(packed() ? "cu_seqlens_padded" : "batch_size");
    object_.Require(packed() ? "total_rows" : "padded_length");
    ShapeFields(FieldReader(object_), layout_);
  }

  absl::Status ReadPolicy() {
    if (policy_json_ == nullptr) return absl::OkStatus();
    RR_ASSIGN_OR_RETURN(auto policy, PaddingPolicyFromJson(*policy_json_));
    policy_ = std::move(policy);
    return absl::OkStatus();
  }

  absl::Status ReadSequences() {
    if (!sequences_->is_array()) return Invalid("micro_batch.sequences", "must be a list");
    for (size_t i = 0; i < sequences_->size(); ++i) {
      RR_RETURN_IF_ERROR(ReadSequence(i));
    }
    return absl::OkStatus();
  }

  absl::Status ReadSequence(size_t index) {
    JsonObject object((*sequences_)[index], absl::StrCat("micro_batch.sequences[", index, "]"));
    SequenceShape& shape = layout_.sequences.emplace_back();
    std::optional<int64_t> recorded;
    object.Require("tokens");
    Fields(FieldReader(object), shape);
    object.Read("sample", out_.samples.emplace_back());
    object.Read("recorded_rows", recorded);
    const Json* pieces = object.Find("pieces");
    RR_RETURN_IF_ERROR(object.status());
    if (shape.live && recorded.value_or(0) != 0)
      return Invalid(object.PathOf("recorded_rows"), "must not be given for a live sequence");
    shape.recorded_rows = recorded.value_or(shape.tokens > 0 && !shape.live ? shape.tokens - 1 : 0);
    if (pieces != nullptr) return ReadPieces(index, object.PathOf("pieces"), *pieces);
    if (shape.tokens == 0) return absl::OkStatus();
    out_.pieces.push_back({.sample = out_.samples.back(),
                           .sequence = static_cast<int32_t>(index),
                           .tokens = shape.tokens,
                           .rows = shape.recorded_rows,
                           .live = shape.live});
    return absl::OkStatus();
  }

  absl::Status ReadPieces(size_t index, const std::string& path, const Json& list) {
    if (!list.is_array() || list.empty()) return Invalid(path, "must be a list of pieces");
    has_pieces_ = true;
    int64_t offset = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      JsonObject object(list[i], absl::StrCat(path, "[", i, "]"));
      SequencePiece& piece = out_.pieces.emplace_back();
      std::optional<int64_t> rows;
      object.Require("sample");
      object.Require("tokens");
      Fields(FieldReader(object), piece);
      object.Read("rows", rows);
      RR_RETURN_IF_ERROR(object.status());
      if (piece.tokens < 1 || piece.tokens > kMaxRows) return Invalid(object.PathOf("tokens"), "is out of range");
      piece.sequence = static_cast<int32_t>(index);
      piece.offset = offset;
      if (piece.live && rows.value_or(0) != 0)
        return Invalid(object.PathOf("rows"), "must not be given for a live piece");
      piece.rows = rows.value_or(piece.live ? 0 : piece.tokens - 1);
      offset += piece.tokens;
    }
    return absl::OkStatus();
  }

  // Fills in, from the policy's prediction, what the trainer did not pass. Adds a warning if the trainer passed another
  // padding, or if the policy fails but nothing was to be filled in.
  absl::Status ApplyPolicy() {
    if (!policy_) return object_.status();
    const bool partition_passed = object_.Find("partition") != nullptr;
    auto prediction = PredictPadding({.sequences = layout_.sequences,
                                      .cp_size = layout_.cp_size,
                                      .tp_size = layout_.tp_size,
                                      .sequence_parallel = layout_.sequence_parallel},
                                     *policy_);
    if (!prediction.ok()) {
      if (!shape_passed_ || !partition_passed) return prediction.status();
      out_.warnings.push_back(
          absl::StrCat("the trainer's layout is used; the policy fails: ", prediction.status().message()));
      return object_.status();
    }
    const TokenFormat predicted = prediction->layout.format;
    if (!shape_passed_ && format_passed_ && layout_.format != predicted) {
      return Invalid("micro_batch.format", absl::StrCat(NameOf(layout_.format), " is given without its shape, but ",
                                                        prediction->policy, " pads to ", NameOf(predicted)));
    }
    if (!shape_passed_) TakeShape(prediction->layout);
    if (!partition_passed) layout_.partition = prediction->layout.partition;
    if (const auto difference = FirstDifference(*prediction, layout_)) {
      out_.warnings.push_back(absl::StrCat("the trainer's layout is used; it differs from the policy: ", *difference));
    }
    return object_.status();
  }

  // Copies from the prediction what the trainer did not state.
  void TakeShape(const MicroBatchLayout& predicted) {
    const MicroBatchLayout given = layout_;
    layout_ = predicted;
    layout_.sequences = given.sequences;
    layout_.target_rows = given.target_rows;
    layout_.tokens_per_sample = given.tokens_per_sample;
    layout_.partition = given.partition;
  }

  const Json& json_;
  JsonObject object_;
  DescribedMicroBatch out_;
  MicroBatchLayout& layout_ = out_.layout;
  const Json* policy_json_ = nullptr;
  std::optional<PaddingPolicy> policy_;
  const Json* sequences_ = nullptr;
  bool format_passed_ = false;
  bool shape_passed_ = true;
  bool has_pieces_ = false;
};

// Decides which layers a rank replays. This depends on geometry and split, the rank's live model, the layers that the
// run lacks, and the native layers.

// Fields of the description; null where they are absent.
struct LayerFields {
  const Json* geometry = nullptr;  // The geometry of the model.
  const Json* split = nullptr;
  const Json* run_geometry = nullptr;  // The geometry of the run, given if the run lacks hash layers or native layers.
  std::vector<int32_t> hash_layers;
  const Json* model = nullptr;  // The field "model" of "rank".
};

struct DescribedLayers {
  Geometry geometry;
  LayerSplit split;
  std::vector<OwnedLayer> layers;  // The layers to replay on this rank; ids ascend.
};

absl::StatusOr<Geometry> GeometryFromJson(const Json& json, absl::string_view path) {
  RR_ASSIGN_OR_RETURN(const auto options, GeometryOptionsFromJson(json, path));
  return Geometry::Create(options);
}

absl::StatusOr<std::vector<LiveChunk>> ChunksFromJson(const Json& json) {
  if (!json.is_array()) return Invalid("rank.model", "must be a list of chunks");
  std::vector<LiveChunk> chunks;
  for (const Json& one : json) {
    const std::string path = absl::StrCat("rank.model[", chunks.size(), "]");
    RR_RETURN_IF_ERROR(ReadFields(one, path, chunks.emplace_back(), "layer_numbers"));
  }
  return chunks;
}

// Gives the layers the ordinals that they have in the run. These differ from the model's if the engine does not capture
// hash layers, so that the run lacks them.
absl::Status PlaceInRun(Geometry run, const std::set<int32_t>& may_lack, DescribedLayers& described) {
  const Geometry& model = described.geometry;
  const std::vector<LayerRouting> own(run.layers().begin(), run.layers().end());
  std::vector<LayerRouting> both;
  for (const LayerRouting& layer : model.layers()) {
    if (run.FindOrdinal(layer.layer_id) || may_lack.count(layer.layer_id) == 0) both.push_back(layer);
  }
  if (both != own || run.num_layers() != model.num_layers()) {
    return Invalid(Reason::kGeometryMismatch, "run_geometry",
                   absl::StrCat(run.DebugString(), " is not that of the model, ", model.DebugString()));
  }
  for (OwnedLayer& layer : described.layers) {
    const auto ordinal = run.FindOrdinal(layer.layer_id);
    if (!ordinal) {
      return Invalid(Reason::kGeometryMismatch, "run_geometry",
                     absl::StrCat("the model's router of layer ", layer.layer_id,
                                  " chooses by scores, but the run has no routes of that layer"));
    }
    layer.ordinal = *ordinal;
  }
  described.geometry = std::move(run);
  return absl::OkStatus();
}

// Decides the layers of this rank. Uses all fields of `rank` except `rows`.
absl::StatusOr<DescribedLayers> LayersFrom(const LayerFields& fields, const PlanRank& rank) {
  RR_ASSIGN_OR_RETURN(const auto geometry, GeometryFromJson(*fields.geometry, "geometry"));
  LayerSplit split{.num_layers = geometry.num_layers()};
  if (fields.split != nullptr) {
    RR_RETURN_IF_ERROR(ReadFields(*fields.split, "split", split));
  }
  RR_ASSIGN_OR_RETURN(const auto table, LayerTable::Create(split));
  RR_ASSIGN_OR_RETURN(auto layers, OwnedMoeLayers(geometry, table, rank.pp_rank, rank.chunk));
  if (fields.model != nullptr) {
    RR_ASSIGN_OR_RETURN(const auto chunks, ChunksFromJson(*fields.model));
    RR_ASSIGN_OR_RETURN(const auto difference,
                        LiveDifference(geometry, table, rank.pp_rank, chunks, rank.native_layers));
    if (difference) return Invalid("rank.model", *difference);
  }
  RR_ASSIGN_OR_RETURN(layers, WithoutNativeLayers(geometry, std::move(layers), rank.native_layers));
  DescribedLayers described{geometry, std::move(split), std::move(layers)};
  if (fields.run_geometry == nullptr) return described;
  RR_ASSIGN_OR_RETURN(auto run, GeometryFromJson(*fields.run_geometry, "run_geometry"));
  std::set<int32_t> may_lack(fields.hash_layers.begin(), fields.hash_layers.end());
  may_lack.insert(rank.native_layers.begin(), rank.native_layers.end());
  RR_RETURN_IF_ERROR(PlaceInRun(std::move(run), may_lack, described));
  return described;
}

absl::StatusOr<DescribedPlan> PlanOf(const Json& json) {
  JsonObject object(json, "");
  LayerFields fields;
  PlanRank rank;
  object.Require("geometry");
  fields.geometry = object.Find("geometry");
  fields.run_geometry = object.Find("run_geometry");
  object.Read("hash_layers", fields.hash_layers);
  fields.split = object.Find("split");
  object.Read("native_layers", rank.native_layers);
  object.Require("micro_batch");
  const Json* micro_batch = object.Find("micro_batch");
  const Json* of_rank = object.Find("rank");
  RR_RETURN_IF_ERROR(object.status());
  RR_ASSIGN_OR_RETURN(auto described, MicroBatchFromJson(*micro_batch));
  if (of_rank != nullptr) {
    JsonObject fields_of_rank(*of_rank, "rank");
    Fields(FieldReader(fields_of_rank), rank);
    fields.model = fields_of_rank.Find("model");
    RR_RETURN_IF_ERROR(fields_of_rank.status());
  }
  RR_ASSIGN_OR_RETURN(auto layers, LayersFrom(fields, rank));
  std::erase_if(rank.native_layers, [&](int32_t layer) { return !layers.geometry.FindOrdinal(layer); });
  auto plan = MakeReplayPlan(layers.geometry, std::move(layers.layers), described.layout, rank.rows, described.pieces);
  if (!plan.ok()) {
    const std::string field = FieldOf(plan.status());
    if (field.empty() || absl::StartsWith(field, "rank.")) return plan.status();
    return WithField(plan.status(), absl::StrCat("micro_batch.", field));
  }
  return DescribedPlan{std::move(described), std::move(layers.geometry), std::move(layers.split), std::move(rank),
                       *std::move(plan)};
}

}  // namespace

absl::StatusOr<DescribedMicroBatch> MicroBatchFromJson(const Json& json) {
  auto described = MicroBatchReader(json).Read();
  return described.ok() ? std::move(described) : InMicroBatch(described.status());
}

absl::StatusOr<PaddingPolicy> PaddingPolicyFromJson(const Json& json) {
  JsonObject object(json, "micro_batch.padding");
  object.Require("policy");
  PaddingPolicy policy;
  Choices<PaddingPolicy> all;
  [&]<size_t... index>(std::index_sequence<index...>) {
    (all.emplace_back(PolicyName(std::variant_alternative_t<index, PaddingPolicy>()),
                      std::variant_alternative_t<index, PaddingPolicy>()),
     ...);
  }
  (std::make_index_sequence<std::variant_size_v<PaddingPolicy>>());
  object.Read("policy", all, policy);
  if (object.Find("policy") != nullptr) {
    std::visit([&](auto& options) { Fields(FieldReader(object), options); }, policy);
  }
  RR_RETURN_IF_ERROR(object.status());
  return policy;
}

absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view text) {
  RR_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "the description"));
  return PlanOf(json);
}

std::vector<int64_t> DescribedPlan::last_rows() const {
  std::vector<int64_t> last;
  if (!last_row_filler) return last;
  for (size_t i = 0; pieces.empty() && i < layout.sequences.size(); ++i) {
    const SequenceShape& shape = layout.sequences[i];
    last.push_back(shape.recorded_rows == shape.tokens - 1 ? shape.recorded_rows : -1);
  }
  // The last token of a piece has no recorded row either. Filler experts are used only at the end of a sequence: inside
  // it, later tokens attend to that token.
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SequencePiece& piece = pieces[i];
    const bool ends = i + 1 == pieces.size() || pieces[i + 1].sequence != piece.sequence;
    last.push_back(ends && piece.rows == piece.tokens - 1 ? piece.start + piece.rows : -1);
  }
  return last;
}

}  // namespace routing_replay::trainer
