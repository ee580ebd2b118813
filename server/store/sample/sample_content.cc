#include "server/store/sample/sample_content.h"

#include <algorithm>

namespace routing_replay::server {
namespace {

// The sample object, its ids and its places in the index.
constexpr int64_t kSampleOverhead = 1024;
// With the longest label and engine.
constexpr int64_t kProvenanceBytes = sizeof(Provenance) + 256;

}  // namespace

bool SameOrigin(const Provenance& a, const Provenance& b) {
  return a.weight_version == b.weight_version && a.weight_label == b.weight_label && a.engine == b.engine;
}

void AppendProvenance(std::vector<Provenance>& list, Provenance next) {
  if (next.rows.empty()) return;
  if (list.empty() || !SameOrigin(list.back(), next)) {
    list.push_back(std::move(next));
    return;
  }
  list.back().rows.end = next.rows.end;
  list.back().appends += next.appends;
}

void TruncateProvenance(std::vector<Provenance>& list, int64_t rows) {
  while (!list.empty() && list.back().rows.begin >= rows) list.pop_back();
  if (!list.empty()) list.back().rows.end = std::min(list.back().rows.end, rows);
}

std::vector<WeightSpan> WeightSpansOf(const std::vector<Provenance>& list) {
  std::vector<WeightSpan> spans;
  for (const Provenance& from : list) {
    if (!spans.empty() && spans.back().version == from.weight_version && spans.back().label == from.weight_label) {
      spans.back().rows.end = from.rows.end;
    } else {
      spans.push_back({from.rows, from.weight_version, from.weight_label});
    }
  }
  return spans;
}

int64_t SampleContent::AppendBytes(int64_t windows, size_t ranges) {
  const SampleContent nothing{TokenChecks(/*block_rows=*/1)};
  return kSampleOverhead + nothing.growth_bytes(windows, ranges);
}

int64_t SampleContent::growth_bytes(int64_t end, size_t ranges) const {
  return kProvenanceBytes + static_cast<int64_t>(ranges * sizeof(RowRange)) + tokens.growth_bytes(end);
}

int64_t SampleContent::metadata_bytes() const {
  return kSampleOverhead + static_cast<int64_t>(provenance.size()) * kProvenanceBytes +
         static_cast<int64_t>(unrecorded.size() * sizeof(RowRange)) + tokens.memory_bytes();
}

SampleContent SampleContent::WithoutPieces() const {
  SampleContent copy(tokens);
  copy.revision = revision;
  copy.content_id = content_id;
  copy.restart_nonce = restart_nonce;
  copy.prefix = prefix;
  copy.group = group;
  copy.engine = engine;
  copy.num_tokens = num_tokens;
  copy.lost_end = lost_end;
  copy.unrecorded = unrecorded;
  copy.provenance = provenance;
  return copy;
}

std::vector<RowPiece> SampleContent::Truncate(int64_t rows) {
  num_tokens.reset();
  lost_end = 0;
  unrecorded = Clip(unrecorded, {0, rows});
  TruncateProvenance(provenance, rows);
  tokens.Truncate(rows);
  return pieces.Truncate(rows);
}

SampleContent SampleContent::Prefix(int64_t rows) const {
  SampleContent child(tokens);
  child.unrecorded = Clip(unrecorded, {0, rows});
  child.provenance = provenance;
  TruncateProvenance(child.provenance, rows);
  child.tokens.Truncate(rows);
  child.pieces = pieces.Prefix(rows);
  return child;
}

}  // namespace routing_replay::server
