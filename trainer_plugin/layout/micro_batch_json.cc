#include "trainer_plugin/layout/micro_batch_json.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "routing_replay/trainer/context_parallel.h"
#include "routing_replay/trainer/padding.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/layout/names.h"
#include "trainer_plugin/layout/padding/padding_json.h"
#include "trainer_plugin/layout/with_field.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;

// A rectangle of flags, as lists of lists.
absl::StatusOr<std::vector<SequenceShape>> SequencesOfMask(const Json& json, bool keep_left_padding) {
  std::vector<uint8_t> mask;
  const Json* first = json.is_array() && !json.empty() ? &json[0] : nullptr;
  const size_t width = first != nullptr && first->is_array() ? first->size() : 0;
  for (const Json& row : json) {
    if (width == 0 || !row.is_array() || row.size() != width) {
      return Invalid("micro_batch.attention_mask", "is no list of lists of one length");
    }
    for (const Json& value : row) {
      const bool one = value == 1 || value == true;
      if (!one && value != 0 && value != false) {
        return Invalid("micro_batch.attention_mask", "has a value that is neither 0 nor 1");
      }
      mask.push_back(one);
    }
  }
  return SequencesFromMask(mask, static_cast<int64_t>(width), keep_left_padding);
}

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json), object_(json, "micro_batch") {}

  absl::StatusOr<DescribedMicroBatch> Read() {
    ReadChoices();
    ReadShape();
    if (absl::Status status = object_.status(); !status.ok()) return status;
    for (auto step : {&Reader::ReadPolicy, &Reader::ReadGroups, &Reader::ReadSequences, &Reader::ApplyPolicy}) {
      if (absl::Status status = (this->*step)(); !status.ok()) return status;
    }
    if (!has_pieces_) out_.pieces.clear();
    return std::move(out_);
  }

 private:
  // Not object_.Find: a field that does not belong to the format stays unknown, and is refused.
  bool Has(const char* key) const { return json_.is_object() && json_.contains(key) && !json_.at(key).is_null(); }
  bool packed() const { return layout_.format == TokenFormat::kThd; }

  void ReadChoices() {
    policy_json_ = object_.FindValue("padding");
    mask_ = object_.FindValue("attention_mask");
    sequences_ = object_.FindValue("sequences");
    if (policy_json_ == nullptr) {
      object_.Require("format");
      object_.Require("partition");
    }
    if (mask_ == nullptr && !Has("cu_seqlens")) object_.Require("sequences");
    object_.Read("format", TokenFormatNames(), layout_.format);
    object_.Read("partition", PartitionNames(), layout_.partition);
    object_.Read("cp_size", layout_.cp_size);
    object_.Read("tp_size", layout_.tp_size);
    object_.Read("sequence_parallel", layout_.sequence_parallel);
    object_.Read("target_rows", layout_.target_rows);
    object_.Read("left_padding", left_padding_);
    object_.Read("local_cp_size", local_cp_size_);
    object_.Read("dp_cp_size", out_.dp_cp_size);
    object_.Read("hierarchical_cp_sizes", hierarchical_);
    object_.Read("tokens_per_sample", layout_.tokens_per_sample);
    object_.Read("last_row_filler", out_.last_row_filler);
  }

  // The shape that the trainer passed; with a policy it may be left to that, and so may its format.
  void ReadShape() {
    const bool rectangle = Has("batch_size") || Has("padded_length");
    format_passed_ = Has("format");
    if (!format_passed_ && rectangle) layout_.format = TokenFormat::kBshd;
    shape_passed_ = policy_json_ == nullptr || rectangle || Has("total_rows") || Has("cu_seqlens_padded");
    if (packed()) {
      if (object_.FindValue("cu_seqlens") != nullptr) object_.Read("cu_seqlens", real_);
      // Megatron reads the real boundaries where no padded ones are passed.
      layout_.cu_seqlens_padded = real_;
    }
    if (!shape_passed_) return;
    if (packed()) {
      if (real_.empty()) object_.Require("cu_seqlens_padded");
      object_.Require("total_rows");
      object_.Read("cu_seqlens_padded", layout_.cu_seqlens_padded);
      object_.Read("total_rows", layout_.total_rows);
      return;
    }
    for (const char* key : {"batch_size", "padded_length"}) object_.Require(key);
    object_.Read("batch_size", layout_.batch_size);
    object_.Read("padded_length", layout_.padded_length);
    object_.Read("row_order", RowOrderNames(), layout_.row_order);
    object_.Read("sp_slice", SpSliceNames(), layout_.sp_slice);
  }

  // A group that only the options name, or only the micro-batch, is the same for both.
  absl::Status ReadPolicy() {
    if (mask_ == nullptr && left_padding_)
      return Invalid("micro_batch.left_padding", "is given without attention_mask");
    if (policy_json_ == nullptr) return absl::OkStatus();
    auto policy = PaddingPolicyFromJson(*policy_json_, "micro_batch.padding");
    if (!policy.ok()) return policy.status();
    policy_ = *std::move(policy);
    if (auto* verl = std::get_if<VerlPadding>(&*policy_); verl != nullptr && verl->local_cp_size) {
      if (!local_cp_size_) local_cp_size_ = verl->local_cp_size;
      return CheckGroup("local_cp_size", *verl->local_cp_size, *local_cp_size_);
    }
    if (auto* megatron = std::get_if<MegatronPadding>(&*policy_); megatron != nullptr && out_.dp_cp_size) {
      if (!megatron->dp_cp_size) megatron->dp_cp_size = out_.dp_cp_size;
      return CheckGroup("dp_cp_size", *megatron->dp_cp_size, *out_.dp_cp_size);
    }
    return absl::OkStatus();
  }

  static absl::Status CheckGroup(absl::string_view name, int32_t option, int32_t size) {
    if (option == size) return absl::OkStatus();
    return Invalid(absl::StrCat("micro_batch.padding.", name), absl::StrCat(option, ", the micro-batch has ", size));
  }

  // Dynamic and hybrid CP choose the size for this micro-batch alone.
  absl::Status ReadGroups() {
    if (local_cp_size_) {
      layout_.cp_size = *local_cp_size_;
      // Without the whole group the size itself can still be looked at.
      absl::Status status = LocalCpRank(0, out_.dp_cp_size.value_or(*local_cp_size_), *local_cp_size_).status();
      if (!status.ok()) return status;
    } else if (out_.dp_cp_size) {
      return Invalid("micro_batch.dp_cp_size", "is given without local_cp_size");
    }
    return hierarchical_.empty() ? absl::OkStatus() : CheckHierarchicalCp(hierarchical_, layout_.cp_size);
  }

  absl::Status ReadSequences() {
    std::vector<SequenceShape> derived;
    if (mask_ != nullptr) {
      auto of_mask = SequencesOfMask(*mask_, left_padding_);
      if (!of_mask.ok()) return of_mask.status();
      derived = *std::move(of_mask);
    } else if (!real_.empty()) {
      auto of_bounds = SequencesFromCuSeqlens(real_);
      if (!of_bounds.ok()) return of_bounds.status();
      derived = *std::move(of_bounds);
    }
    if (sequences_ == nullptr) {
      layout_.sequences = std::move(derived);
      out_.samples.resize(layout_.sequences.size());
      return absl::OkStatus();
    }
    if (!sequences_->is_array()) return Invalid("micro_batch.sequences", "is not a list");
    for (size_t i = 0; i < sequences_->size(); ++i) {
      absl::Status status = ReadSequence(i, i < derived.size() ? &derived[i] : nullptr);
      if (!status.ok()) return status;
    }
    if (mask_ == nullptr || derived.size() == sequences_->size()) return absl::OkStatus();
    return Invalid(Reason::kShape, "micro_batch.attention_mask",
                   absl::StrCat("has ", derived.size(), " rows for ", sequences_->size(), " sequences"));
  }

  absl::Status ReadSequence(size_t index, const SequenceShape* derived) {
    JsonObject object((*sequences_)[index], absl::StrCat("micro_batch.sequences[", index, "]"));
    SequenceShape& shape = layout_.sequences.emplace_back();
    std::vector<int64_t> media;
    std::optional<int64_t> recorded;
    if (derived != nullptr) shape = *derived;
    if (derived == nullptr) object.Require("tokens");
    object.Read("tokens", shape.tokens);
    object.Read("media_rows", media);
    object.Read("first_row", shape.first_row);
    object.Read("sample", out_.samples.emplace_back());
    object.Read("recorded_rows", recorded);
    object.Read("live", shape.live);
    const Json* pieces = object.Find("pieces");
    if (absl::Status status = object.status(); !status.ok()) return status;
    const auto tokens =
        media.empty() ? absl::StatusOr<int64_t>(shape.tokens) : MediaExpandedTokens(shape.tokens, media);
    if (!tokens.ok()) return tokens.status();
    if (*tokens > shape.tokens && recorded && *recorded == shape.tokens - 1) {
      out_.warnings.push_back(absl::StrCat("sequence ", index, ": ", *recorded, " recorded rows for ", *tokens,
                                           " tokens: rows count after media are expanded"));
    }
    shape.tokens = *tokens;
    if (derived != nullptr && shape.tokens != derived->tokens) {
      return Invalid(Reason::kShape, object.PathOf("tokens"),
                     absl::StrCat(shape.tokens, ", the micro-batch has ", derived->tokens, " tokens there"));
    }
    if (shape.live && recorded.value_or(0) != 0) return Invalid(object.PathOf("recorded_rows"), "of a live sequence");
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
    if (!list.is_array() || list.empty()) return Invalid(path, "is no list of pieces");
    has_pieces_ = true;
    int64_t offset = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      JsonObject object(list[i], absl::StrCat(path, "[", i, "]"));
      SequencePiece& piece = out_.pieces.emplace_back();
      std::optional<int64_t> rows;
      object.Require("sample");
      object.Require("tokens");
      object.Read("sample", piece.sample);
      object.Read("tokens", piece.tokens);
      object.Read("start", piece.start);
      object.Read("rows", rows);
      object.Read("live", piece.live);
      if (absl::Status status = object.status(); !status.ok()) return status;
      if (piece.tokens < 1 || piece.tokens > kMaxRows) return Invalid(object.PathOf("tokens"), "is out of range");
      piece.sequence = static_cast<int32_t>(index);
      piece.offset = offset;
      if (piece.live && rows.value_or(0) != 0) return Invalid(object.PathOf("rows"), "of a live piece");
      piece.rows = rows.value_or(piece.live ? 0 : piece.tokens - 1);
      offset += piece.tokens;
    }
    return absl::OkStatus();
  }

  // What the trainer passed wins: a policy that cannot pad this micro-batch, or pads it otherwise, is a warning then.
  absl::Status ApplyPolicy() {
    if (!policy_) return object_.status();
    const bool partition_passed = object_.FindValue("partition") != nullptr;
    auto prediction = PredictPadding({.sequences = layout_.sequences,
                                      .cp_size = layout_.cp_size,
                                      .tp_size = layout_.tp_size,
                                      .sequence_parallel = layout_.sequence_parallel},
                                     *policy_);
    if (!prediction.ok()) {
      if (!shape_passed_ || !partition_passed) return prediction.status();
      out_.warnings.push_back(
          absl::StrCat("the trainer's layout is used, the policy makes none: ", prediction.status().message()));
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
      out_.warnings.push_back(
          absl::StrCat("the trainer's layout is used, but it is not that of the policy: ", *difference));
    }
    return object_.status();
  }

  // What the trainer did not state is as predicted.
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
  const Json* mask_ = nullptr;
  const Json* sequences_ = nullptr;
  std::vector<int64_t> real_;  // cu_seqlens
  std::vector<int32_t> hierarchical_;
  std::optional<int32_t> local_cp_size_;
  bool format_passed_ = false;
  bool shape_passed_ = true;
  bool left_padding_ = false;
  bool has_pieces_ = false;
};

}  // namespace

absl::StatusOr<DescribedMicroBatch> MicroBatchFromJson(const Json& json) {
  auto described = Reader(json).Read();
  return described.ok() ? std::move(described) : InMicroBatch(described.status());
}

absl::Status InMicroBatch(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  const std::string field = detail ? detail->field : "";
  const bool there = field.empty() || field == "micro_batch" || absl::StartsWith(field, "micro_batch.");
  return there ? status : WithField(status, absl::StrCat("micro_batch.", field));
}

nlohmann::ordered_json LayoutToJson(const MicroBatchLayout& layout) {
  const auto text = [](absl::string_view name) { return std::string(name); };
  nlohmann::ordered_json json = {{"format", text(NameOf(layout.format))}};
  if (layout.format == TokenFormat::kThd) {
    json["cu_seqlens_padded"] = layout.cu_seqlens_padded;
    json["total_rows"] = layout.total_rows;
    if (layout.tokens_per_sample) json["tokens_per_sample"] = *layout.tokens_per_sample;
  } else {
    json["batch_size"] = layout.batch_size;
    json["padded_length"] = layout.padded_length;
    json["row_order"] = text(NameOf(layout.row_order));
    json["sp_slice"] = text(NameOf(layout.sp_slice));
  }
  json["partition"] = text(NameOf(layout.partition));
  json["cp_size"] = layout.cp_size;
  json["tp_size"] = layout.tp_size;
  json["sequence_parallel"] = layout.sequence_parallel;
  if (layout.target_rows) json["target_rows"] = *layout.target_rows;
  return json;
}

}  // namespace routing_replay::trainer
