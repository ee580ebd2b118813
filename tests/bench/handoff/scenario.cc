#include "tests/bench/handoff/scenario.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tests/generator/prng.h"

namespace routing_replay::bench {
namespace {

constexpr int32_t kLayers = 48, kTopK = 8, kExperts = 128;
constexpr double kMedian = 4096, kSigma = 0.6;
constexpr int64_t kMinTokens = 64, kMaxTokens = 16384;
constexpr uint64_t kLengthSeed = 20251121, kRouteSeed = 7;
constexpr int64_t kMicroBatchTokens = 32768;

uint64_t Mix(uint64_t x) { return testing::SplitMix64(x).Next(); }

// Uniform in [0, 1).
double Uniform(uint64_t x) { return static_cast<double>(Mix(x)) * 0x1.0p-64; }

// Box-Muller instead of a library's distribution, so that any language produces the same lengths.
int64_t Tokens(uint64_t sample) {
  const double u1 = Uniform(kLengthSeed + 2 * sample), u2 = Uniform(kLengthSeed + 2 * sample + 1);
  const double z = std::sqrt(-2 * std::log(u1)) * std::cos(2 * std::numbers::pi * u2);
  return std::clamp(std::lrint(kMedian * std::exp(kSigma * z)), kMinTokens, kMaxTokens);
}

int64_t Padded(int64_t tokens) { return (tokens + kSamplePadMultiple - 1) / kSamplePadMultiple * kSamplePadMultiple; }

}  // namespace

RankPlace PlaceOf(int32_t rank) { return {.tp = rank % kTp, .cp = rank / kTp % kCp, .pp = rank / (kTp * kCp)}; }

HandoffScenario::HandoffScenario(int32_t samples) : geometry_(Geometry::Uniform(kLayers, kExperts, kTopK)) {
  int64_t size = 0;
  for (int32_t i = 0; i < samples; ++i) {
    tokens_.push_back(Tokens(i));
    const int64_t padded = Padded(tokens_.back());
    if (i == 0 || size + padded > kMicroBatchTokens) {
      micro_batches_.push_back({i, i});
      size = 0;
    }
    micro_batches_.back().end = i + 1;
    size += padded;
  }
}

int64_t HandoffScenario::ids() const {
  int64_t ids = 0;
  for (int32_t i = 0; i < samples(); ++i) ids += rows(i) * geometry_.ids_per_row();
  return ids;
}

std::vector<int32_t> HandoffScenario::SamplesOf(int32_t worker) const {
  std::vector<int32_t> mine;
  for (int32_t i = worker; i < samples(); i += kWorkers) mine.push_back(i);
  return mine;
}

std::vector<uint8_t> HandoffScenario::MakeSample(int32_t sample) const {
  std::vector<uint8_t> ids(rows(sample) * geometry_.ids_per_row());
  uint8_t* out = ids.data();
  for (uint64_t row = 0; row < static_cast<uint64_t>(rows(sample)); ++row) {
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      const uint64_t h = Mix(kRouteSeed ^ static_cast<uint64_t>(sample) << 40 ^ row << 16 ^ layer);
      const uint64_t first = h & 127, step = 2 * (h >> 8 & 63) + 1;
      for (uint64_t k = 0; k < kTopK; ++k) *out++ = static_cast<uint8_t>((first + k * step) & (kExperts - 1));
    }
  }
  return ids;
}

std::vector<std::optional<RowSource>> HandoffScenario::LocalRows(RankPlace place) const {
  std::vector<std::optional<RowSource>> local;
  for (const RowRange micro_batch : micro_batches_) {
    std::vector<std::optional<RowSource>> stream;  // The rows of one context-parallel rank.
    for (auto i = static_cast<int32_t>(micro_batch.begin); i < micro_batch.end; ++i) {
      const int64_t chunk_rows = Padded(tokens_[i]) / (2 * kCp);
      for (const int64_t chunk : {place.cp, 2 * kCp - 1 - place.cp}) {
        for (int64_t row = chunk * chunk_rows; row < (chunk + 1) * chunk_rows; ++row) {
          stream.push_back(row < rows(i) ? std::optional(RowSource{i, row}) : std::nullopt);
        }
      }
    }
    const size_t n = stream.size();
    local.insert(local.end(), stream.begin() + place.tp * n / kTp, stream.begin() + (place.tp + 1) * n / kTp);
  }
  return local;
}

std::vector<uint8_t> HandoffScenario::ExpectedArray(RankPlace place,
                                                    absl::Span<const std::vector<uint8_t>> samples) const {
  constexpr int32_t kStageLayers = kLayers / kPp;
  const std::vector<std::optional<RowSource>> local = LocalRows(place);
  std::vector<uint8_t> out(kStageLayers * local.size() * kTopK);
  uint8_t* to = out.data();
  for (int32_t layer = place.pp * kStageLayers; layer < (place.pp + 1) * kStageLayers; ++layer) {
    for (const std::optional<RowSource>& source : local) {
      if (source) std::memcpy(to, &samples[source->sample][(source->row * kLayers + layer) * kTopK], kTopK);
      to += kTopK;
    }
  }
  return out;
}

}  // namespace routing_replay::bench
