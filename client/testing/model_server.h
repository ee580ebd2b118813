// A slow and simple server for tests: samples of one layer, E = 256, K = 1, RAW, so that a row is one byte.
#ifndef CLIENT_TESTING_MODEL_SERVER_H_
#define CLIENT_TESTING_MODEL_SERVER_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "proto/wire/block/block.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::testing {

struct ModelRow {
  std::optional<uint8_t> id;  // Unset: unrecorded.
  std::optional<uint32_t> token;
};

struct ModelSample {
  std::vector<ModelRow> rows;
  std::optional<int64_t> num_tokens;
  int64_t revision = 0;
  int64_t group = 0;
};

inline Geometry ModelGeometry() { return Geometry::Uniform(1, 256, 1); }

inline absl::Status ModelError(absl::StatusCode code, Reason reason, int64_t committed) {
  ErrorDetail detail{.reason = reason};
  detail.committed_rows = committed;
  return MakeError(code, ReasonName(reason), detail);
}

class ModelServer {
 public:
  std::map<std::string, ModelSample> samples;

  // Applies one append. Its payload may be encoded blocks or a RAW u8 tensor; it may also have no payload.
  AppendAck Apply(const AppendRequest& request) {
    const AppendHeader& header = *request.append;
    AppendAck ack{.append_id = header.append_id, .sample = header.sample};
    ModelSample copy = samples[header.sample];
    ack.error = ApplyTo(copy, header, Rows(request), ack);
    if (!ack.error.ok()) return ack;
    samples[header.sample] = copy;
    ack.committed_rows = static_cast<int64_t>(copy.rows.size());
    ack.revision = copy.revision;
    ack.sealed = copy.num_tokens.has_value();
    return ack;
  }

  SampleState State(const std::string& name) const {
    const ModelSample& sample = samples.at(name);
    SampleState state{.sample = name,
                      .handle = SampleHandle(name),
                      .group = sample.group,
                      .committed_rows = static_cast<int64_t>(sample.rows.size()),
                      .num_tokens = sample.num_tokens,
                      .revision = sample.revision};
    uint32_t check = 0;
    for (size_t row = 0; row < sample.rows.size(); ++row) {
      if (!sample.rows[row].token) return state;
      check = TokenCheckExtend(check, Bytes(*sample.rows[row].token));
    }
    state.token_check = TokenCheck{state.committed_rows, check};
    return state;
  }

 private:
  static absl::Span<const uint8_t> Bytes(const uint32_t& token) {
    return {reinterpret_cast<const uint8_t*>(&token), sizeof(token)};
  }

  // Returns the rows that an append adds, decoded from its payload.
  static std::vector<ModelRow> Rows(const AppendRequest& request) {
    const AppendHeader& header = *request.append;
    std::vector<ModelRow> rows(header.rows.size());
    std::vector<uint8_t> payload(request.payload.size());
    ChainCursor(request.payload).CopyTo(absl::MakeSpan(payload));
    size_t next = 0;
    for (const RowRange range : Subtract(header.rows, header.unrecorded)) {
      for (int64_t row = range.begin; row < range.end; ++row) rows[row - header.rows.begin].id = payload.at(next++);
    }
    for (size_t i = 0; i * 4 < header.token_ids.size(); ++i) {
      std::memcpy(&rows[i].token.emplace(), header.token_ids.data() + 4 * i, 4);
    }
    return rows;
  }

  static absl::Status ApplyTo(ModelSample& sample, const AppendHeader& header, const std::vector<ModelRow>& rows,
                              AppendAck& ack) {
    const auto committed = static_cast<int64_t>(sample.rows.size());
    constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
    if (header.revision != sample.revision) return ModelError(kPrecondition, Reason::kOldRevision, committed);
    if (header.rows.begin > committed) return ModelError(kPrecondition, Reason::kGap, committed);
    if (sample.num_tokens && header.rows.end > committed) return ModelError(kPrecondition, Reason::kSealed, committed);
    for (int64_t row = header.rows.begin; row < header.rows.end; ++row) {
      const ModelRow& given = rows[row - header.rows.begin];
      if (row >= committed) {
        sample.rows.push_back(given);
        continue;
      }
      const ModelRow& kept = sample.rows[row];
      if (given.token && kept.token && given.token != kept.token) {
        return ModelError(absl::StatusCode::kAlreadyExists, Reason::kOtherTokens, committed);
      }
      ++ack.trimmed_rows;
      if (given.id != kept.id) ++ack.conflicting_rows;
    }
    if (header.seal_num_tokens) sample.num_tokens = header.seal_num_tokens;
    if (header.group) sample.group = *header.group;
    return absl::OkStatus();
  }
};

// Rows [range) of a sample whose row r has id ids[r], as DecodeTensor would give them.
inline DecodedRows ModelRows(const std::vector<uint8_t>& ids, RowRange range, std::vector<RowRange> unrecorded,
                             int32_t block_rows) {
  DecodedRows out{.rows = range, .unrecorded = std::move(unrecorded)};
  for (const RowRange recorded : Subtract(range, out.unrecorded)) {
    for (const RowRange part : SplitAtWindows(recorded, block_rows)) {
      Block& block = out.blocks.emplace_back();
      block.rows = part;
      block.bytes = Buffer(part.size());
      std::copy(ids.begin() + part.begin, ids.begin() + part.end, block.bytes.data());
      block.plane_crc32c = {Crc32c(block.bytes.span())};
    }
  }
  return out;
}

inline std::vector<uint8_t> ModelIds(std::mt19937_64& random, int64_t rows) {
  std::vector<uint8_t> ids(rows);
  for (uint8_t& id : ids) id = static_cast<uint8_t>(random());
  return ids;
}

}  // namespace routing_replay::testing

#endif  // CLIENT_TESTING_MODEL_SERVER_H_
