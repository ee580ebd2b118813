#include "routing_replay/trainer/layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

// Stage s = v·P + p is chunk v of pipeline rank p.
struct StageCounts {
  std::vector<int32_t> layers;  // Their sum is L.
  MtpPlacement mtp;
};

// The functions below require positive sizes, and return the INVALID_ARGUMENT errors of LayerTable::Create.

// Without a layout, MTP follows the last decoder layer and so is in the last chunk of the last rank.
MtpPlacement MtpBehindLastStage(const LayerSplit& split, int32_t virtual_stages) {
  return {.layers = split.mtp_num_layers, .pp_rank = split.pipeline_size - 1, .chunk = virtual_stages - 1};
}

// Returns the number of layers of each pipeline rank, over all of its chunks: the first and the last rank as given in
// the split, the other layers spread evenly over the other ranks. `layers`: num_layers, and one each for the embedding
// and the loss if they count. INVALID_ARGUMENT naming `field` if the layers cannot be spread evenly, or if the split
// gives more layers than there are.
absl::StatusOr<std::vector<int32_t>> SpreadLayers(const LayerSplit& split, int32_t layers, absl::string_view field) {
  const int64_t first = split.first_stage_layers.value_or(0), last = split.last_stage_layers.value_or(0);
  const int64_t others =
      int64_t{split.pipeline_size} - split.first_stage_layers.has_value() - split.last_stage_layers.has_value();
  const int64_t rest = layers - first - last;
  if (first < 0 || last < 0) return Invalid(field, "a given stage must not have a negative number of layers");
  if (others < 0) return Invalid(field, "the only pipeline rank is the first and the last stage: give one size");
  if (rest < 0 || (others == 0 && rest > 0)) {
    return Invalid(field, absl::StrCat("the given stages have ", first + last, " layers, but there are ", layers));
  }
  if (others > 0 && rest % others != 0) {
    const auto part = [](auto sign, int64_t n, auto what) { return n == 0 ? "" : absl::StrCat(sign, n, what); };
    return Invalid(field, absl::StrCat(split.num_layers, " layers",
                                       part(" + ", layers - split.num_layers, " for embedding and loss"),
                                       part(" minus ", first + last, " of the given stages"),
                                       " do not split evenly over ", others, " pipeline ranks"));
  }
  std::vector<int32_t> ranks(split.pipeline_size, others == 0 ? 0 : static_cast<int32_t>(rest / others));
  if (split.first_stage_layers) ranks.front() = *split.first_stage_layers;
  if (split.last_stage_layers) ranks.back() = *split.last_stage_layers;
  return ranks;
}

// OK if `stages` is a multiple of P, and equals P · V if V is given.
absl::Status CheckStages(const LayerSplit& split, size_t stages, absl::string_view field) {
  if (stages % split.pipeline_size != 0) {
    return Invalid(field,
                   absl::StrCat(stages, " stages are not a multiple of ", split.pipeline_size, " pipeline ranks"));
  }
  const size_t chunks = stages / split.pipeline_size;
  if (split.virtual_stages && chunks != static_cast<size_t>(*split.virtual_stages)) {
    return Invalid("split.virtual_stages", absl::StrCat(*split.virtual_stages, ", but ", stages, " stages on ",
                                                        split.pipeline_size, " pipeline ranks make ", chunks));
  }
  return absl::OkStatus();
}

// Rejects several stages on a pipeline of one rank.
absl::Status CheckOneRank(const LayerSplit& split, size_t stages, absl::string_view field) {
  if (split.pipeline_size > 1 || stages == 1) return absl::OkStatus();
  return Invalid(field, absl::StrCat(stages,
                                     " stages with a pipeline of one rank: Megatron starts every chunk at layer 0, so "
                                     "virtual stages need at least two pipeline ranks"));
}

// Splits that do not list every stage: the layers are spread evenly, with or without the embedding and the loss counted
// as layers, or evenly except for a given first or last stage. Follows Megatron's get_num_layers_to_build.

absl::Status CheckUneven(const LayerSplit& split) {
  if (split.account_for_embedding || split.account_for_loss) {
    return Invalid("split.first_stage_layers",
                   "first_stage_layers and last_stage_layers exclude account_for_embedding and account_for_loss");
  }
  for (const auto& [name, layers] : {std::pair("split.first_stage_layers", split.first_stage_layers),
                                     std::pair("split.last_stage_layers", split.last_stage_layers)}) {
    if (layers.value_or(1) < 1) return Invalid(name, "a given stage must have at least one layer");
  }
  if (!split.first_stage_layers || !split.last_stage_layers) return absl::OkStatus();
  if (split.pipeline_size == 1) {
    return Invalid("split.last_stage_layers", "must not be given: the only rank is the first stage");
  }
  if (split.pipeline_size == 2 && split.virtual_stages.value_or(1) > 1) {
    return Invalid("split.virtual_stages",
                   "Megatron cannot place virtual stages on two ranks whose layers are both given (no middle stage)");
  }
  return absl::OkStatus();
}

absl::StatusOr<StageCounts> CountsOfSizes(const LayerSplit& split) {
  const int32_t chunks = split.virtual_stages.value_or(1);
  RR_RETURN_IF_ERROR(CheckOneRank(split, static_cast<size_t>(split.pipeline_size) * chunks, "split.virtual_stages"));
  const bool uneven = split.first_stage_layers || split.last_stage_layers;
  if (uneven) {
    RR_RETURN_IF_ERROR(CheckUneven(split));
  }
  const int32_t layers = split.num_layers + split.account_for_embedding + split.account_for_loss;
  RR_ASSIGN_OR_RETURN(const auto ranks, SpreadLayers(split, layers, "split.num_layers"));
  if (uneven && *std::min_element(ranks.begin(), ranks.end()) < 1) {
    return Invalid("split.num_layers", "with a given first or last stage, every stage must have at least one layer");
  }
  StageCounts counts{.mtp = MtpBehindLastStage(split, chunks)};
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    if (ranks[p] % chunks == 0) continue;
    return Invalid("split.virtual_stages", absl::StrCat("the ", ranks[p], " layers of pipeline rank ", p,
                                                        " are not a multiple of ", chunks, " virtual stages"));
  }
  for (int32_t v = 0; v < chunks; ++v) {
    for (const int32_t of_rank : ranks) counts.layers.push_back(of_rank / chunks);
  }
  counts.layers.front() -= split.account_for_embedding;
  counts.layers.back() -= split.account_for_loss;
  return counts;
}

// Pipeline layouts.

constexpr const char* kLayout = "split.layout";

absl::Status InvalidLayout(absl::string_view what) { return Invalid(kLayout, what); }

// A repeat in the text, such as "t*3" or "(tt|)*3": its `body` ("t", "tt|"), the number of times, and where the text
// continues.
struct Repeat {
  absl::string_view body;
  size_t times = 0;
  size_t end = 0;
};

// Reads "*n" at `at`; a number above kMaxLayoutText becomes kMaxLayoutText + 1, which WriteOut rejects.
std::optional<Repeat> ReadTimes(absl::string_view text, size_t at, absl::string_view body) {
  if (at + 1 >= text.size() || text[at] != '*' || !absl::ascii_isdigit(text[at + 1])) return std::nullopt;
  Repeat repeat{.body = body, .end = at + 1};
  for (; repeat.end < text.size() && absl::ascii_isdigit(text[repeat.end]); ++repeat.end) {
    repeat.times = std::min(repeat.times * 10 + (text[repeat.end] - '0'), kMaxLayoutText + 1);
  }
  return repeat;
}

// Finds "(…)*n"; the group ends at the first ")" and must not be empty.
std::optional<Repeat> GroupRepeat(absl::string_view text, size_t at) {
  if (text[at] != '(') return std::nullopt;
  const size_t close = text.find(')', at);
  if (close == absl::string_view::npos || close == at + 1) return std::nullopt;
  return ReadTimes(text, close + 1, text.substr(at + 1, close - at - 1));
}

// Finds "x*n".
std::optional<Repeat> CharacterRepeat(absl::string_view text, size_t at) {
  return ReadTimes(text, at + 1, text.substr(at, 1));
}

// Returns the text with every repeat that `find` finds expanded, from left to right; expanded text is not searched
// again.
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
          absl::StrCat("a repeat of \"", text, "\" expands to more than ", kMaxLayoutText, " entries"));
    }
    for (size_t i = 0; i < repeat->times; ++i) absl::StrAppend(&written, repeat->body);
    at = repeat->end;
    if (written.size() > kMaxLayoutText) break;
  }
  if (written.size() > kMaxLayoutText) {
    return InvalidLayout(absl::StrCat("has more than ", kMaxLayoutText, " entries after its repeats are expanded"));
  }
  return written;
}

absl::Status CheckEntries(absl::string_view stage) {
  for (const char entry : stage) {
    if (absl::string_view("EtmL").find(entry) != absl::string_view::npos) continue;
    return InvalidLayout(absl::StrCat("'", absl::string_view(&entry, 1), "' in stage \"", stage,
                                      "\" must be E (embedding), t (decoder layer), m (MTP) or L (loss); repeats "
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
  return InvalidLayout(absl::StrCat("\"", name, "\" must be embedding, decoder, mtp or loss"));
}

int64_t CountOf(absl::string_view stage, char entry) { return std::count(stage.begin(), stage.end(), entry); }

// Checks that the layout begins with the embedding and ends with the loss, and that it has as many decoder and MTP
// layers as the model (Megatron's validate_layer_layout).
absl::Status CheckCounts(const LayerSplit& split) {
  const std::string all = absl::StrJoin(split.layout->stages, "");
  if (all.empty() || all.front() != kStageEmbedding || CountOf(all, kStageEmbedding) != 1) {
    return InvalidLayout("the first entry must be the embedding (E), which must occur exactly once");
  }
  if (all.back() != kStageLoss || CountOf(all, kStageLoss) != 1) {
    return InvalidLayout("the last entry must be the loss (L), which must occur exactly once");
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
    return InvalidLayout("a decoder layer (t) must not follow an MTP layer (m)");
  }
  return absl::OkStatus();
}

// Finds the stage of the MTP layers. It must have all of them and be the last chunk of its rank (Megatron's
// validate_layer_layout).
absl::StatusOr<MtpPlacement> PlaceMtp(const LayerSplit& split) {
  const std::vector<std::string>& stages = split.layout->stages;
  const int32_t chunks = static_cast<int32_t>(stages.size()) / split.pipeline_size;
  MtpPlacement mtp = MtpBehindLastStage(split, chunks);
  for (size_t s = 0; s < stages.size(); ++s) {
    const int64_t layers = CountOf(stages[s], kStageMtp);
    if (layers == 0) continue;
    mtp.pp_rank = static_cast<int32_t>(s) % split.pipeline_size;
    mtp.chunk = static_cast<int32_t>(s) / split.pipeline_size;
    if (layers != split.mtp_num_layers) return InvalidLayout("the MTP layers (m) must all be in one stage");
    if (mtp.chunk != chunks - 1) return InvalidLayout("the MTP layers (m) must be in the last chunk of their rank");
  }
  return mtp;
}

absl::StatusOr<StageCounts> CountsOfLayout(const LayerSplit& split) {
  const std::vector<std::string>& stages = split.layout->stages;
  for (const std::string& stage : stages) {
    RR_RETURN_IF_ERROR(CheckEntries(stage));
  }
  RR_RETURN_IF_ERROR(CheckStages(split, stages.size(), kLayout));
  RR_RETURN_IF_ERROR(CheckOneRank(split, stages.size(), kLayout));
  RR_RETURN_IF_ERROR(CheckCounts(split));
  RR_ASSIGN_OR_RETURN(const MtpPlacement mtp, PlaceMtp(split));
  StageCounts counts{.mtp = mtp};
  for (const std::string& stage : stages) {
    counts.layers.push_back(static_cast<int32_t>(CountOf(stage, kStageDecoder)));
  }
  return counts;
}

// Hybrid patterns.

constexpr const char* kPattern = "split.hybrid_pattern";

absl::Status InvalidPattern(absl::string_view what) { return Invalid(kPattern, what); }

absl::Status CheckSymbols(absl::string_view symbols) {
  const bool latent = absl::StrContains(symbols, 'D') || absl::StrContains(symbols, '+');
  if (absl::StrContains(symbols, '*') && latent) {
    return InvalidPattern("has \"*\" beside \"D\" or \"+\": a model has one kind of attention");
  }
  for (const char symbol : symbols) {
    if (!absl::StrContains("EMGD*+-|", symbol)) {
      return InvalidPattern(absl::StrCat("a symbol must be one of E M G D * + -, got '", std::string(1, symbol), "'"));
    }
  }
  return absl::OkStatus();
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
  if (absl::StrContains(pattern.mtp, '|')) return InvalidPattern("\"|\" in an MTP depth: all of MTP is in one stage");
  return CheckSymbols(pattern.mtp);
}

absl::StatusOr<std::vector<int32_t>> StagesOf(const LayerSplit& split) {
  const std::vector<std::string>& written = split.hybrid->stages;
  if (written.size() == 1 && split.pipeline_size > 1) {
    if (split.virtual_stages.value_or(1) > 1) {
      return InvalidPattern("a pattern without \"|\" cannot have virtual stages: separate all stages with \"|\"");
    }
    return SpreadLayers(split, split.num_layers, kPattern);  // As Megatron's select_pipeline_segment.
  }
  absl::Status status = CheckStages(split, written.size(), kPattern);
  // With V given, Megatron's single rank builds all its chunks; without V it would build only the first.
  if (!split.virtual_stages) status.Update(CheckOneRank(split, written.size(), kPattern));
  if (!status.ok()) return status;
  if (split.first_stage_layers || split.last_stage_layers) return SpreadLayers(split, split.num_layers, kPattern);
  std::vector<int32_t> stages;
  stages.reserve(written.size());
  for (const std::string& stage : written) stages.push_back(static_cast<int32_t>(stage.size()));
  return stages;
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
  RR_ASSIGN_OR_RETURN(std::vector<int32_t> stages, StagesOf(split));
  const int32_t chunks = static_cast<int32_t>(stages.size()) / split.pipeline_size;
  StageCounts counts{.layers = std::move(stages), .mtp = MtpBehindLastStage(split, chunks)};
  if (hybrid.mtp_depths != 0) counts.mtp.layers = hybrid.mtp_depths;
  return counts;
}

// The table.

absl::Status CheckRange(absl::string_view field, int32_t value, int32_t least) {
  if (value >= least && value <= kMaxLayers) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value, " is not in ", least, " … ", kMaxLayers));
}

absl::Status CheckSizes(const LayerSplit& split) {
  absl::Status status = CheckRange("split.num_layers", split.num_layers, 1);
  status.Update(CheckRange("split.pipeline_size", split.pipeline_size, 1));
  status.Update(CheckRange("split.virtual_stages", split.virtual_stages.value_or(1), 1));
  status.Update(CheckRange("split.mtp_num_layers", split.mtp_num_layers, 0));
  return status;
}

// A layout, or a hybrid pattern with "|", lists all stages; then the split must not give sizes of stages as well.
absl::Status CheckBranches(const LayerSplit& split) {
  if (split.layout && split.hybrid) {
    return Invalid("split.layout", "a layout and a hybrid pattern both define the stages: give only one of them");
  }
  const absl::string_view written = split.layout ? "layout" : "hybrid_pattern";
  if (!split.layout && !split.hybrid) return absl::OkStatus();
  if (split.account_for_embedding || split.account_for_loss) {
    return Invalid(absl::StrCat("split.", written), "excludes account_for_embedding and account_for_loss");
  }
  const bool of_stages = split.layout || split.hybrid->stages.size() > 1;
  if (of_stages && (split.first_stage_layers || split.last_stage_layers)) {
    return Invalid(absl::StrCat("split.", written),
                   "defines every stage, which excludes first_stage_layers and last_stage_layers");
  }
  return absl::OkStatus();
}

absl::StatusOr<StageCounts> CountsOf(const LayerSplit& split) {
  if (split.layout) return CountsOfLayout(split);
  if (split.hybrid) return CountsOfHybrid(split);
  return CountsOfSizes(split);
}

// Returns the layers of each stage, chunk v of rank p at [p * chunks + v]. Megatron fills the chunks 0 of all ranks
// first, then the chunks 1 of all ranks, and so on: each chunk starts at the layer where the one before it ends.
std::vector<LayerRange> PlaceStages(const std::vector<int32_t>& stages, int32_t pipeline_size) {
  const size_t chunks = stages.size() / pipeline_size;
  std::vector<LayerRange> ranges(stages.size());
  int32_t next = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    ranges[s % pipeline_size * chunks + s / pipeline_size] = {next, next + stages[s]};
    next += stages[s];
  }
  return ranges;
}

}  // namespace

absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text) {
  if (text.size() > kMaxLayoutText) return InvalidLayout(absl::StrCat("exceeds ", kMaxLayoutText, " characters"));
  absl::StatusOr<std::string> written = WriteOut(absl::StrReplaceAll(text, {{",", ""}}), GroupRepeat);
  if (written.ok()) written = WriteOut(*written, CharacterRepeat);
  if (!written.ok()) return written.status();
  PipelineLayout layout{.stages = absl::StrSplit(*written, '|')};
  for (const std::string& stage : layout.stages) {
    RR_RETURN_IF_ERROR(CheckEntries(stage));
  }
  return layout;
}

absl::StatusOr<PipelineLayout> PipelineLayoutFromNames(const std::vector<std::vector<std::string>>& stages) {
  PipelineLayout layout;
  for (const std::vector<std::string>& names : stages) {
    std::string& stage = layout.stages.emplace_back();
    for (const std::string& name : names) {
      RR_ASSIGN_OR_RETURN(const char entry, EntryOfName(name));
      stage.push_back(entry);
    }
  }
  return layout;
}

int32_t HybridPattern::num_layers() const { return static_cast<int32_t>(absl::StrJoin(stages, "").size()); }

absl::StatusOr<HybridPattern> ParseHybridPattern(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, '/');
  RR_RETURN_IF_ERROR(CheckSymbols(parts.front()));
  HybridPattern pattern{.stages = absl::StrSplit(parts.front(), '|')};
  parts.erase(parts.begin());
  RR_RETURN_IF_ERROR(ReadMtp(parts, pattern));
  return pattern;
}

absl::StatusOr<LayerTable> LayerTable::Create(const LayerSplit& split) {
  RR_RETURN_IF_ERROR(CheckSizes(split));
  RR_RETURN_IF_ERROR(CheckBranches(split));
  RR_ASSIGN_OR_RETURN(const StageCounts counts, CountsOf(split));
  LayerTable table;
  table.num_layers_ = split.num_layers;
  table.pipeline_size_ = split.pipeline_size;
  table.virtual_stages_ = static_cast<int32_t>(counts.layers.size()) / split.pipeline_size;
  table.ranges_ = PlaceStages(counts.layers, split.pipeline_size);
  table.mtp_ = counts.mtp;
  return table;
}

absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, const LayerTable& table,
                                                       int32_t pp_rank, std::optional<int32_t> chunk) {
  if (geometry.num_layers() != table.num_layers()) {
    return Invalid("split.num_layers",
                   absl::StrCat(table.num_layers(), " layers are split, the geometry has ", geometry.num_layers()));
  }
  if (pp_rank < 0 || pp_rank >= table.pipeline_size()) {
    return Invalid("rank.pp", absl::StrCat(pp_rank, " is not in [0, ", table.pipeline_size(), ")"));
  }
  if (chunk && (*chunk < 0 || *chunk >= table.virtual_stages())) {
    return Invalid("rank.chunk", absl::StrCat(*chunk, " is not in [0, ", table.virtual_stages(), ")"));
  }
  std::vector<OwnedLayer> owned;
  for (int32_t v = chunk.value_or(0); v < (chunk ? *chunk + 1 : table.virtual_stages()); ++v) {
    const LayerRange range = table.range(pp_rank, v);
    for (int32_t layer = range.begin; layer < range.end; ++layer) {
      if (const auto ordinal = geometry.FindOrdinal(layer)) {
        owned.push_back({.layer_id = layer, .ordinal = *ordinal, .chunk = v});
      }
    }
  }
  return owned;
}

absl::StatusOr<std::vector<OwnedLayer>> WithoutNativeLayers(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                                            absl::Span<const int32_t> native_layers) {
  for (const int32_t id : native_layers) {
    if (!geometry.FindOrdinal(id)) return Invalid("native_layers", absl::StrCat(id, " is not a MoE layer"));
  }
  const auto is_native = [&](const OwnedLayer& layer) {
    return std::find(native_layers.begin(), native_layers.end(), layer.layer_id) != native_layers.end();
  };
  layers.erase(std::remove_if(layers.begin(), layers.end(), is_native), layers.end());
  return layers;
}

absl::StatusOr<std::optional<std::string>> LiveDifference(const Geometry& geometry, const LayerTable& table,
                                                          int32_t pp_rank, absl::Span<const LiveChunk> chunks,
                                                          absl::Span<const int32_t> native_layers) {
  const auto is_native = [&](int64_t layer) {
    return std::find(native_layers.begin(), native_layers.end(), layer) != native_layers.end();
  };
  if (chunks.size() != static_cast<size_t>(table.virtual_stages())) {
    return absl::StrCat("pipeline rank ", pp_rank, ": the model has ", chunks.size(), " chunks, the split gives ",
                        table.virtual_stages());
  }
  for (int32_t v = 0; v < table.virtual_stages(); ++v) {
    RR_ASSIGN_OR_RETURN(const auto owned, OwnedMoeLayers(geometry, table, pp_rank, v));
    std::vector<int64_t> ours, theirs;
    for (const int64_t number : chunks[v].layer_numbers) {
      if (!is_native(number - 1)) ours.push_back(number - 1);
    }
    std::sort(ours.begin(), ours.end());
    for (const OwnedLayer& layer : owned) {
      if (!is_native(layer.layer_id)) theirs.push_back(layer.layer_id);
    }
    if (ours == theirs) continue;
    return absl::StrCat("pipeline rank ", pp_rank, ", chunk ", v, ": the model has routers in decoder layers [",
                        absl::StrJoin(ours, ", "), "], the split gives [", absl::StrJoin(theirs, ", "), "]");
  }
  return std::nullopt;
}

}  // namespace routing_replay::trainer
