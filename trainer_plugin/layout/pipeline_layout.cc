#include "routing_replay/trainer/pipeline_layout.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/stage_counts.h"

namespace routing_replay::trainer {
namespace {

constexpr const char* kField = "split.layout";

absl::Status InvalidLayout(absl::string_view what) { return Invalid(kField, what); }

// What one repeat says: `body` n times, and where the text goes on.
struct Repeat {
  absl::string_view body;
  size_t times = 0;
  size_t end = 0;
};

// "*n" at `at`; a number above kMaxLayoutText is that.
std::optional<Repeat> ReadTimes(absl::string_view text, size_t at, absl::string_view body) {
  if (at + 1 >= text.size() || text[at] != '*' || !absl::ascii_isdigit(text[at + 1])) return std::nullopt;
  Repeat repeat{.body = body, .end = at + 1};
  for (; repeat.end < text.size() && absl::ascii_isdigit(text[repeat.end]); ++repeat.end) {
    repeat.times = std::min(repeat.times * 10 + (text[repeat.end] - '0'), kMaxLayoutText + 1);
  }
  return repeat;
}

// "(…)*n": up to the first ")", and not empty.
std::optional<Repeat> GroupRepeat(absl::string_view text, size_t at) {
  if (text[at] != '(') return std::nullopt;
  const size_t close = text.find(')', at);
  if (close == absl::string_view::npos || close == at + 1) return std::nullopt;
  return ReadTimes(text, close + 1, text.substr(at + 1, close - at - 1));
}

// "x*n".
std::optional<Repeat> CharacterRepeat(absl::string_view text, size_t at) {
  return ReadTimes(text, at + 1, text.substr(at, 1));
}

// The text with every repeat that `find` finds written out, from left to right; what was written is not read again.
absl::StatusOr<std::string> WriteOut(absl::string_view text,
                                     std::optional<Repeat> (*find)(absl::string_view text, size_t at)) {
  std::string written;
  for (size_t at = 0; at < text.size();) {
    const auto repeat = find(text, at);
    if (!repeat) {
      written.push_back(text[at++]);
      continue;
    }
    if (repeat->times * repeat->body.size() > kMaxLayoutText) {
      return InvalidLayout(
          absl::StrCat("a repeat of \"", text, "\" writes out more than ", kMaxLayoutText, " entries"));
    }
    for (size_t i = 0; i < repeat->times; ++i) absl::StrAppend(&written, repeat->body);
    at = repeat->end;
    if (written.size() > kMaxLayoutText) break;
  }
  if (written.size() > kMaxLayoutText) {
    return InvalidLayout(absl::StrCat("is more than ", kMaxLayoutText, " entries, written out"));
  }
  return written;
}

absl::Status CheckEntries(absl::string_view stage) {
  for (const char entry : stage) {
    if (absl::string_view("EtmL").find(entry) != absl::string_view::npos) continue;
    return InvalidLayout(absl::StrCat("'", absl::string_view(&entry, 1), "' in stage \"", stage,
                                      "\" is none of E (embedding), t (decoder layer), m (MTP) and L (loss); repeats "
                                      "are x*n and (…)*n, without groups in groups"));
  }
  return absl::OkStatus();
}

absl::StatusOr<char> EntryOfName(absl::string_view name) {
  const std::string plain = absl::AsciiStrToLower(absl::StripAsciiWhitespace(name));
  if (plain == "embedding") return kStageEmbedding;
  if (plain == "decoder") return kStageDecoder;
  if (plain == "mtp") return kStageMtp;
  if (plain == "loss") return kStageLoss;
  return InvalidLayout(absl::StrCat("\"", name, "\" is none of embedding, decoder, mtp and loss"));
}

int64_t CountOf(absl::string_view stage, char entry) { return std::count(stage.begin(), stage.end(), entry); }

// The model's ends, and how much of what lies between (validate_layer_layout).
absl::Status CheckCounts(const LayerSplit& split) {
  const std::string all = absl::StrJoin(split.layout->stages, "");
  if (all.empty() || all.front() != kStageEmbedding || CountOf(all, kStageEmbedding) != 1) {
    return InvalidLayout("the first entry is the embedding (E), which is there exactly once");
  }
  if (all.back() != kStageLoss || CountOf(all, kStageLoss) != 1) {
    return InvalidLayout("the last entry is the loss (L), which is there exactly once");
  }
  if (CountOf(all, kStageDecoder) != split.num_layers) {
    return InvalidLayout(
        absl::StrCat("has ", CountOf(all, kStageDecoder), " decoder layers (t), not num_layers = ", split.num_layers));
  }
  if (CountOf(all, kStageMtp) != split.mtp_num_layers) {
    return InvalidLayout(
        absl::StrCat("has ", CountOf(all, kStageMtp), " MTP layers (m), not mtp_num_layers = ", split.mtp_num_layers));
  }
  const size_t mtp = all.find(kStageMtp);
  if (mtp != std::string::npos && all.find(kStageDecoder, mtp) != std::string::npos) {
    return InvalidLayout("a decoder layer (t) comes behind a MTP layer (m)");
  }
  return absl::OkStatus();
}

// All MTP layers are in one stage, the last chunk of its rank (validate_layer_layout).
absl::StatusOr<MtpPlacement> PlaceMtp(const LayerSplit& split) {
  const std::vector<std::string>& stages = split.layout->stages;
  const int32_t chunks = static_cast<int32_t>(stages.size()) / split.pipeline_size;
  MtpPlacement mtp = MtpBehindLastStage(split, chunks);
  for (size_t s = 0; s < stages.size(); ++s) {
    const int64_t layers = CountOf(stages[s], kStageMtp);
    if (layers == 0) continue;
    mtp.pp_rank = static_cast<int32_t>(s) % split.pipeline_size;
    mtp.chunk = static_cast<int32_t>(s) / split.pipeline_size;
    if (layers != split.mtp_num_layers) return InvalidLayout("the MTP layers (m) are not all in one stage");
    if (mtp.chunk != chunks - 1) return InvalidLayout("the MTP layers (m) are not in the last chunk of their rank");
  }
  return mtp;
}

}  // namespace

absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text) {
  if (text.size() > kMaxLayoutText) return InvalidLayout(absl::StrCat("is longer than ", kMaxLayoutText));
  absl::StatusOr<std::string> written = WriteOut(absl::StrReplaceAll(text, {{",", ""}}), GroupRepeat);
  if (written.ok()) written = WriteOut(*written, CharacterRepeat);
  if (!written.ok()) return written.status();
  PipelineLayout layout{.stages = absl::StrSplit(*written, '|')};
  for (const std::string& stage : layout.stages) {
    if (absl::Status status = CheckEntries(stage); !status.ok()) return status;
  }
  return layout;
}

absl::StatusOr<PipelineLayout> PipelineLayoutFromNames(const std::vector<std::vector<std::string>>& stages) {
  PipelineLayout layout;
  for (const std::vector<std::string>& names : stages) {
    std::string& stage = layout.stages.emplace_back();
    for (const std::string& name : names) {
      const absl::StatusOr<char> entry = EntryOfName(name);
      if (!entry.ok()) return entry.status();
      stage.push_back(*entry);
    }
  }
  return layout;
}

absl::StatusOr<StageCounts> CountsOfLayout(const LayerSplit& split) {
  const std::vector<std::string>& stages = split.layout->stages;
  for (const std::string& stage : stages) {
    if (absl::Status status = CheckEntries(stage); !status.ok()) return status;
  }
  absl::Status status = CheckStages(split, stages.size(), kField);
  status.Update(CheckOneRank(split, stages.size(), kField));
  status.Update(CheckCounts(split));
  if (!status.ok()) return status;
  const absl::StatusOr<MtpPlacement> mtp = PlaceMtp(split);
  if (!mtp.ok()) return mtp.status();
  StageCounts counts{.mtp = *mtp};
  for (const std::string& stage : stages) {
    counts.layers.push_back(static_cast<int32_t>(CountOf(stage, kStageDecoder)));
  }
  return counts;
}

}  // namespace routing_replay::trainer
