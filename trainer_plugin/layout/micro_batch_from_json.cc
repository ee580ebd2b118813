// Reads "micro_batch" of a description: what the trainer passed, completed by what a named padding policy predicts.
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/layout/plan_json.h"
#include "trainer_plugin/layout/read_fields.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;

absl::Status InMicroBatch(const absl::Status& status) {
  const std::string field = FieldOf(status);
  const bool there = field.empty() || field == "micro_batch" || absl::StartsWith(field, "micro_batch.");
  return there ? status : WithField(status, absl::StrCat("micro_batch.", field));
}

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json), object_(json, "micro_batch") {}

  absl::StatusOr<DescribedMicroBatch> Read() {
    ReadChoices();
    ReadShape();
    RR_RETURN_IF_ERROR(object_.status());
    for (auto step : {&Reader::ReadPolicy, &Reader::ReadSequences, &Reader::ApplyPolicy}) {
      RR_RETURN_IF_ERROR((this->*step)());
    }
    if (!has_pieces_) out_.pieces.clear();
    return std::move(out_);
  }

 private:
  // object_.Find must not be used: a field that does not belong to the format must stay unknown and be rejected.
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
    object_.Read("local_cp_size", local_cp_size_);
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

  // If only the policy or only the micro-batch has local_cp_size, it applies to both.
  absl::Status ReadPolicy() {
    if (policy_json_ != nullptr) {
      RR_ASSIGN_OR_RETURN(auto policy, PaddingPolicyFromJson(*policy_json_, "micro_batch.padding"));
      policy_ = std::move(policy);
      if (const auto* verl = std::get_if<VerlPadding>(&*policy_); verl != nullptr && verl->local_cp_size) {
        if (local_cp_size_.value_or(*verl->local_cp_size) != *verl->local_cp_size) {
          return Invalid("micro_batch.padding.local_cp_size",
                         absl::StrCat(*verl->local_cp_size, ", the micro-batch has ", *local_cp_size_));
        }
        local_cp_size_ = verl->local_cp_size;
      }
    }
    layout_.cp_size = local_cp_size_.value_or(layout_.cp_size);
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

  // Completes what the trainer did not pass from the policy. If the padding differs, or the policy fails although it is
  // not needed, adds a warning.
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
      return Invalid("micro_batch.format", absl::StrCat(NameOf(layout_.format), " is given without its shape, ",
                                                        prediction->policy, " makes ", NameOf(predicted)));
    }
    if (!shape_passed_) TakeShape(prediction->layout);
    if (!partition_passed) layout_.partition = prediction->layout.partition;
    out_.warnings.insert(out_.warnings.end(), prediction->hazards.begin(), prediction->hazards.end());
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
  std::optional<int32_t> local_cp_size_;
  bool format_passed_ = false;
  bool shape_passed_ = true;
  bool has_pieces_ = false;
};

}  // namespace

absl::StatusOr<DescribedMicroBatch> MicroBatchFromJson(const Json& json) {
  auto described = Reader(json).Read();
  return described.ok() ? std::move(described) : InMicroBatch(described.status());
}

absl::StatusOr<PaddingPolicy> PaddingPolicyFromJson(const Json& given, absl::string_view path) {
  const Json json = WithoutNulls(given);
  JsonObject object(json, path);
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

}  // namespace routing_replay::trainer
