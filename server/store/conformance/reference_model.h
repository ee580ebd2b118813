// A slow and obvious model of a store with one run. It keeps every row, every token and every claimed history in plain
// vectors, and computes what a real store must answer to each call.
#ifndef SERVER_STORE_CONFORMANCE_REFERENCE_MODEL_H_
#define SERVER_STORE_CONFORMANCE_REFERENCE_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "routing_replay/wire/error_detail.h"
#include "server/store/conformance/trajectory.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

using Tokens = std::vector<uint32_t>;

// The result of a call: an error or an ack.
struct ModelAnswer {
  absl::StatusCode code = absl::StatusCode::kOk;
  Reason reason = Reason::kUnspecified;
  std::optional<int64_t> first_differing_block;
  std::optional<int64_t> row;
  int64_t trimmed = 0, conflicting = 0, late = 0, unrecorded = 0, unverified = 0;
};

struct ModelSample {
  int64_t revision = 0;
  uint64_t nonce = 0;
  std::optional<PrefixReference> prefix;
  int64_t group = 0;
  std::optional<int64_t> num_tokens;
  Rows rows;
  struct Origin {
    int64_t weight_version = 0;
    std::string weight_label;
    bool operator==(const Origin&) const = default;
  };
  std::vector<Origin> origins;    // Per row.
  std::vector<bool> tokens_seen;  // Per row.
  // All token ids before a row, as the writers claimed them, for the rows where a store keeps a check.
  std::map<int64_t, Tokens> history{{0, {}}};
  std::optional<int64_t> told_by_seal;  // The row of a check that came with a seal without rows.
  int64_t content = 0;                  // Counts changes of content.
};

class ReferenceModel {
 public:
  ReferenceModel(RunInfo run, const Geometry& geometry) : run_(std::move(run)), geometry_(geometry) {}

  ModelAnswer Append(const AppendSpec& spec);
  ModelAnswer Seal(const std::string& sample, int64_t num_tokens, int64_t revision);
  ModelAnswer Truncate(const std::string& sample, int64_t rows, std::optional<int64_t> revision);
  void Release(const std::string& sample) { samples_.erase(sample); }
  // Returns the sample, or null if it does not exist.
  const ModelSample* Find(const std::string& sample) const;

 private:
  bool IsCheckRow(int64_t row, const ModelSample& sample) const;
  int64_t WindowOf(int64_t rows) const { return rows == 0 ? 0 : (rows - 1) / run_.options.block_rows; }
  ModelAnswer Open(const AppendSpec& spec, ModelSample& sample) const;
  // Compares the tokens row by row. `chain`: the tokens before the row just compared, as the append claims them.
  ModelAnswer CompareTokens(const AppendSpec& spec, const ModelSample& sample, std::optional<Tokens>& chain,
                            std::vector<bool>& verified) const;
  ModelAnswer CompareRoutes(const AppendSpec& spec, const ModelSample& sample, const std::vector<bool>& verified,
                            ModelAnswer answer) const;
  void Extend(const AppendSpec& spec, ModelSample& sample, std::optional<Tokens> chain);
  // Returns the row as the append states it; nothing if the append declares it unrecorded.
  std::optional<RowIds> Shown(const AppendSpec& spec, int64_t row) const;
  void Forget(ModelSample& sample) const;

  const RunInfo run_;
  const Geometry& geometry_;
  std::map<std::string, ModelSample> samples_;
  int64_t contents_ = 0;
};

}  // namespace routing_replay::testing

#endif  // SERVER_STORE_CONFORMANCE_REFERENCE_MODEL_H_
