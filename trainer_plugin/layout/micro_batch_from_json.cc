// "micro_batch" of a description: what the trainer passed, what a named policy predicts, and which of them counts.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

SequenceShape WholeSample(int64_t tokens) {
  return {.tokens = tokens, .recorded_rows = std::max<int64_t>(tokens - 1, 0)};
}

// From an attention mask [batch][width], 1 for a token: T and, for a rectangle with padding on the left, first_row. A
// packer that strips the padding first (SkyRL, verl) has first_row = 0 in its documents: keep_left_padding = false
// then.
absl::StatusOr<std::vector<SequenceShape>> SequencesFromMask(absl::Span<const uint8_t> mask, int64_t width,
                                                             bool keep_left_padding) {
  const int64_t size = static_cast<int64_t>(mask.size());
  if (width < 1 || size % width != 0) {
    return Invalid(Reason::kShape, "attention_mask", absl::StrCat(size, " values are no rows of ", width));
  }
  if (std::any_of(mask.begin(), mask.end(), [](uint8_t value) { return value > 1; })) {
    return Invalid("attention_mask", "has a value that is neither 0 nor 1");
  }
  std::vector<SequenceShape> sequences;
  for (int64_t b = 0; b < size / width; ++b) {
    const absl::Span<const uint8_t> row = mask.subspan(b * width, width);
    const auto begin = std::find(row.begin(), row.end(), 1);
    const auto end = std::find(begin, row.end(), 0);
    if (std::find(end, row.end(), 1) != row.end()) {
      return Invalid(Reason::kShape, absl::StrCat("attention_mask[", b, "]"),
                     absl::StrCat("has padding at column ", end - row.begin(), " between tokens"));
    }
    sequences.push_back(WholeSample(end - begin));
    if (keep_left_padding && begin != row.end()) sequences.back().first_row = begin - row.begin();
  }
  return sequences;
}

// From the real boundaries of documents (cu_seqlens, [B + 1]).
absl::StatusOr<std::vector<SequenceShape>> SequencesFromCuSeqlens(absl::Span<const int64_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0) {
    return Invalid(Reason::kShape, "cu_seqlens", "does not start at 0");
  }
  std::vector<SequenceShape> sequences;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      return Invalid(Reason::kShape, "cu_seqlens",
                     absl::StrCat("entry ", i, " descends from ", cu_seqlens[i - 1], " to ", cu_seqlens[i]));
    }
    sequences.push_back(WholeSample(cu_seqlens[i] - cu_seqlens[i - 1]));
  }
  return sequences;
}

// T of a sample whose `tokens` count one placeholder per medium, media_rows[i] being the rows that medium i becomes in
// the model. Rows are numbered after expansion.
absl::StatusOr<int64_t> MediaExpandedTokens(int64_t tokens, absl::Span<const int64_t> media_rows) {
  if (tokens < 0 || tokens > kMaxStreamRows) return Invalid("tokens", absl::StrCat(tokens, " cannot be"));
  if (static_cast<int64_t>(media_rows.size()) > tokens) {
    return Invalid(Reason::kShape, "media_rows", absl::StrCat(media_rows.size(), " media in ", tokens, " tokens"));
  }
  for (const int64_t rows : media_rows) {
    if (rows < 1 || rows > kMaxStreamRows || tokens > kMaxStreamRows - rows + 1) {
      return Invalid("media_rows", absl::StrCat(rows, " rows of a medium make a sample that cannot be"));
    }
    tokens += rows - 1;
  }
  return tokens;
}

// A rectangle of flags, as lists of lists.
absl::StatusOr<std::vector<SequenceShape>> SequencesOfMask(const Json& json, bool keep_left_padding) {
  std::vector<uint8_t> mask;
  const Json* first = json.is_array() && !json.empty() ? &json[0] : nullptr;
  const size_t width = first != nullptr && first->is_array() ? first->size() : 0;
  for (const Json& row : json) {
    if (width == 0 || !row.is_array() || row.size() != width) {
      return Invalid("micro_batch.attention_mask", "must be a list of lists of one length");
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
  // Not object_.Find: a field that does not belong to the format stays unknown, and is rejected.
  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }
  bool packed() const { return layout_.format == TokenFormat::kThd; }

  void ReadChoices() {
    policy_json_ = object_.Find("padding");
    mask_ = object_.Find("attention_mask");
    sequences_ = object_.Find("sequences");
    if (policy_json_ == nullptr) {
      object_.Require("format");
      object_.Require("partition");
    }
    if (mask_ == nullptr && !Has("cu_seqlens")) object_.Require("sequences");
    Fields(FieldReader(object_), layout_);
    object_.Read("left_padding", left_padding_);
    object_.Read("local_cp_size", local_cp_size_);
    object_.Read("dp_cp_size", out_.dp_cp_size);
    object_.Read("hierarchical_cp_sizes", hierarchical_);
    object_.Read("last_row_filler", out_.last_row_filler);
  }

  // The shape that the trainer passed; with a policy it may be left to that, and so may its format.
  void ReadShape() {
    const bool rectangle = Has("batch_size") || Has("padded_length");
    format_passed_ = Has("format");
    if (!format_passed_ && rectangle) layout_.format = TokenFormat::kBshd;
    shape_passed_ = policy_json_ == nullptr || rectangle || Has("total_rows") || Has("cu_seqlens_padded");
    if (packed()) {
      object_.Read("cu_seqlens", real_);
      // Megatron reads the real boundaries where no padded ones are passed.
      layout_.cu_seqlens_padded = real_;
    }
    if (!shape_passed_) return;
    if (packed() && real_.empty()) object_.Require("cu_seqlens_padded");
    for (const char* key : {packed() ? "total_rows" : "batch_size", packed() ? "total_rows" : "padded_length"}) {
      object_.Require(key);
    }
    ShapeFields(FieldReader(object_), layout_);
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
    int64_t product = 1;
    for (const int32_t size : hierarchical_) {
      if (absl::Status status = CheckSize("hierarchical_cp_sizes", size); !status.ok()) return status;
      product = std::min<int64_t>(product * size, int64_t{layout_.cp_size} + 1);
    }
    if (hierarchical_.empty() || product == layout_.cp_size) return absl::OkStatus();
    return Invalid(Reason::kShape, "hierarchical_cp_sizes",
                   absl::StrCat(absl::StrJoin(hierarchical_, " x "), " is not cp_size = ", layout_.cp_size));
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
    if (!sequences_->is_array()) return Invalid("micro_batch.sequences", "must be a list");
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
    Fields(FieldReader(object), shape);
    object.Read("media_rows", media);
    object.Read("sample", out_.samples.emplace_back());
    object.Read("recorded_rows", recorded);
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
    const bool partition_passed = object_.Find("partition") != nullptr;
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

absl::StatusOr<int32_t> LocalCpRank(int32_t dp_cp_rank, int32_t dp_cp_size, int32_t local_cp_size) {
  if (absl::Status status = CheckSize("dp_cp_size", dp_cp_size); !status.ok()) return status;
  if (absl::Status status = CheckSize("local_cp_size", local_cp_size); !status.ok()) return status;
  if (dp_cp_rank < 0 || dp_cp_rank >= dp_cp_size) {
    return Invalid("rank.dp_cp", absl::StrCat(dp_cp_rank, " is not in [0, ", dp_cp_size, ")"));
  }
  if ((local_cp_size & (local_cp_size - 1)) != 0 || dp_cp_size % local_cp_size != 0) {
    return Invalid(Reason::kShape, "local_cp_size",
                   absl::StrCat(local_cp_size, " is not a power of two that divides the ", dp_cp_size,
                                " ranks of the DP x CP group"));
  }
  return dp_cp_rank % local_cp_size;
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
  if (absl::Status status = object.status(); !status.ok()) return status;
  return policy;
}

}  // namespace routing_replay::trainer
