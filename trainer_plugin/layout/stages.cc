#include "trainer_plugin/layout/stages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

constexpr const char* kLayout = "split.layout";

absl::Status InvalidLayout(absl::string_view what) { return Invalid(kLayout, what); }

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

constexpr const char* kPattern = "split.hybrid_pattern";

absl::Status InvalidPattern(absl::string_view what) { return Invalid(kPattern, what); }

// Which layers carry routes, of the decoder or of one MTP depth: those of symbol E.
absl::StatusOr<std::vector<bool>> CheckSymbols(absl::string_view symbols) {
  const bool latent = absl::StrContains(symbols, 'D') || absl::StrContains(symbols, '+');
  if (absl::StrContains(symbols, '*') && latent) {
    return InvalidPattern("has \"*\" beside \"D\" or \"+\": a model has one kind of attention");
  }
  std::vector<bool> flags;
  for (const char symbol : symbols) {
    if (symbol == '|') continue;
    if (!absl::StrContains("EMGD*+-", symbol)) {
      return InvalidPattern(absl::StrCat("a symbol must be one of E M G D * + -, got '", std::string(1, symbol), "'"));
    }
    flags.push_back(symbol == 'E');
  }
  return flags;
}

absl::Status ReadMtp(const std::vector<std::string>& depths, HybridPattern& pattern) {
  if (std::all_of(depths.begin(), depths.end(), [](const std::string& depth) { return depth.empty(); })) {
    return absl::OkStatus();
  }
  pattern.mtp = depths.front();
  pattern.mtp_depths = static_cast<int32_t>(depths.size());
  for (const std::string& depth : depths) {
    if (depth == pattern.mtp) continue;
    return InvalidPattern(absl::StrCat("MTP depths differ: \"", pattern.mtp, "\" and \"", depth, "\""));
  }
  if (absl::StrContains(pattern.mtp, '|')) return InvalidPattern("\"|\" in a MTP depth: all of MTP is in one stage");
  return CheckSymbols(pattern.mtp).status();
}

// As select_pipeline_segment without "|".
absl::StatusOr<std::vector<int32_t>> SpreadStages(const LayerSplit& split) {
  auto stages = SpreadLayers(split, split.num_layers);
  if (stages) return *std::move(stages);
  if (!split.first_stage_layers && !split.last_stage_layers) {
    return InvalidPattern(absl::StrCat(split.num_layers, " layers without \"|\" are not a multiple of ",
                                       split.pipeline_size, " pipeline ranks"));
  }
  return InvalidPattern(absl::StrCat(split.num_layers, " layers less ", split.first_stage_layers.value_or(0), " and ",
                                     split.last_stage_layers.value_or(0),
                                     " of the given stages do not split evenly over the other stages: layers would be "
                                     "in no stage or in two"));
}

absl::StatusOr<std::vector<int32_t>> StagesOf(const LayerSplit& split) {
  const std::vector<std::string>& written = split.hybrid->stages;
  if (written.size() == 1 && split.pipeline_size > 1) {
    if (split.virtual_stages.value_or(1) > 1) {
      return InvalidPattern("without \"|\" there are no virtual stages: write all stages out");
    }
    return SpreadStages(split);
  }
  absl::Status status = CheckStages(split, written.size(), kPattern);
  // Told of its chunks, a single rank builds them one behind the other; else it builds the first one alone.
  if (!split.virtual_stages) status.Update(CheckOneRank(split, written.size(), kPattern));
  if (!status.ok()) return status;
  if (split.first_stage_layers || split.last_stage_layers) return SpreadStages(split);
  std::vector<int32_t> stages;
  stages.reserve(written.size());
  for (const std::string& stage : written) stages.push_back(static_cast<int32_t>(stage.size()));
  return stages;
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
  absl::Status status = CheckStages(split, stages.size(), kLayout);
  status.Update(CheckOneRank(split, stages.size(), kLayout));
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

int32_t HybridPattern::num_layers() const { return static_cast<int32_t>(absl::StrJoin(stages, "").size()); }

int32_t HybridPattern::Count(char symbol) const {
  const std::string decoder = absl::StrJoin(stages, "");
  return static_cast<int32_t>(std::count(decoder.begin(), decoder.end(), symbol) +
                              mtp_depths * std::count(mtp.begin(), mtp.end(), symbol));
}

absl::StatusOr<HybridPattern> ParseHybridPattern(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, '/');
  const auto moe = CheckSymbols(parts.front());
  if (!moe.ok()) return moe.status();
  HybridPattern pattern{.stages = absl::StrSplit(parts.front(), '|')};
  for (size_t i = 0; i < moe->size(); ++i) {
    if ((*moe)[i]) pattern.moe_layer_ids.push_back(static_cast<int32_t>(i));
  }
  parts.erase(parts.begin());
  if (absl::Status status = ReadMtp(parts, pattern); !status.ok()) return status;
  return pattern;
}

absl::StatusOr<StageCounts> CountsOfHybrid(const LayerSplit& split) {
  const HybridPattern& hybrid = *split.hybrid;
  if (split.num_layers != hybrid.num_layers()) {
    return InvalidPattern(
        absl::StrCat("has ", hybrid.num_layers(), " symbols in its decoder, not num_layers = ", split.num_layers));
  }
  if (split.mtp_num_layers != 0 && hybrid.mtp_depths != 0 && split.mtp_num_layers != hybrid.mtp_depths) {
    return InvalidPattern(
        absl::StrCat("has ", hybrid.mtp_depths, " MTP depths, not mtp_num_layers = ", split.mtp_num_layers));
  }
  absl::StatusOr<std::vector<int32_t>> stages = StagesOf(split);
  if (!stages.ok()) return stages.status();
  const int32_t chunks = static_cast<int32_t>(stages->size()) / split.pipeline_size;
  StageCounts counts{.layers = *std::move(stages), .mtp = MtpBehindLastStage(split, chunks)};
  if (hybrid.mtp_depths != 0) counts.mtp.layers = hybrid.mtp_depths;
  return counts;
}

}  // namespace routing_replay::trainer
