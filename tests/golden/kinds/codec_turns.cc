// codec_turns: rows that arrive turn by turn. Each framework's merge rule, as written here, must give the recorded
// result. Our trajectory must give the same rows 0 … T − 2 where the rules agree, and a conflict or a rejection where
// they do not.
#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/trajectory/turn_plan.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using Row = std::vector<int32_t>;  // [layers · K].
using Rows = std::vector<Row>;
// nullopt: the framework raises.
using Merged = std::optional<Rows>;

struct GivenTurn {
  std::optional<std::string> payload;  // Base64 as on the wire.
  std::optional<Rows> rows;            // nullopt: there is no payload, or it is not a whole number of rows.
  int64_t start = 0;
  int64_t tokens = 0;  // Of the history including this turn.
  int64_t output_tokens = 0;
};

struct TurnsCase {
  std::string framework;
  int64_t layers = 0;
  int64_t top_k = 0;
  int64_t num_experts = 0;
  std::vector<GivenTurn> turns;
  // Only for SkyRL: one entry per token of the sample, 1 if the loss uses the token. The sample may have more tokens
  // than the turns.
  std::vector<int> loss_mask;
};

int64_t Size(const auto& list) { return static_cast<int64_t>(list.size()); }

std::optional<Rows> RowsOf(const std::string& base64, int64_t row_ids) {
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) return std::nullopt;
  const auto row_bytes = static_cast<size_t>(4 * row_ids);
  if (bytes.size() % row_bytes != 0) return std::nullopt;
  Rows rows(bytes.size() / row_bytes, Row(row_ids));
  for (size_t i = 0; i < rows.size(); ++i) std::memcpy(rows[i].data(), bytes.data() + i * row_bytes, row_bytes);
  return rows;
}

GivenTurn TurnOf(const Json& json, int64_t row_ids) {
  GivenTurn turn{.start = json.value("start", int64_t{0}), .output_tokens = json.value("output_tokens", int64_t{0})};
  turn.tokens = json.value("total_tokens", json.value("prompt_tokens", int64_t{0}) + turn.output_tokens);
  if (!json.at("payload").is_null()) {
    turn.payload = json["payload"].get<std::string>();
    turn.rows = RowsOf(*turn.payload, row_ids);
  }
  return turn;
}

TurnsCase CaseOf(const Json& input) {
  TurnsCase c{.framework = input.at("framework").get<std::string>(),
              .layers = input.at("layers").get<int64_t>(),
              .top_k = input.at("topk").get<int64_t>(),
              .num_experts = input.at("num_experts").get<int64_t>(),
              .turns = {},
              .loss_mask = input.value("loss_mask", std::vector<int>{})};
  const Json turns = input.contains("turns") ? input["turns"] : Json::array({input});
  for (const Json& turn : turns) c.turns.push_back(TurnOf(turn, c.layers * c.top_k));
  return c;
}

// The next functions are the merge rules of the frameworks. They return the merged rows, or nothing if the framework
// raises.

// Replaces all rows from `start` on. Rejects a gap and a wrong number of rows.
Merged SlimeRule(const TurnsCase& c) {
  Rows held;
  for (const GivenTurn& turn : c.turns) {
    if (!turn.rows || turn.start > Size(held) || Size(*turn.rows) != turn.tokens - 1 - turn.start) return std::nullopt;
    held.resize(turn.start);
    held.insert(held.end(), turn.rows->begin(), turn.rows->end());
  }
  return held;
}

// Appends exactly at the end of the held rows; drops a row for the last token.
Merged MilesRule(const TurnsCase& c) {
  Rows held;
  for (const GivenTurn& turn : c.turns) {
    if (!turn.rows || turn.start != Size(held)) return std::nullopt;
    const int64_t expected = turn.tokens - 1 - turn.start;
    if (Size(*turn.rows) != expected && Size(*turn.rows) != expected + 1) return std::nullopt;
    held.insert(held.end(), turn.rows->begin(), turn.rows->begin() + expected);
  }
  return held;
}

// Appends exactly the new rows. Tokens without rows get the ids 0 … K − 1, unless the loss uses them.
Merged SkyrlRule(const TurnsCase& c) {
  Rows held;
  for (const GivenTurn& turn : c.turns) {
    if (!turn.rows || Size(*turn.rows) != turn.tokens - 1 - Size(held)) return std::nullopt;
    held.insert(held.end(), turn.rows->begin(), turn.rows->end());
  }
  for (int64_t i = 1; i < Size(c.loss_mask); ++i) {
    if (c.loss_mask[i] != 0 && i - 1 >= Size(held)) return std::nullopt;
  }
  Row filler(c.layers * c.top_k);
  for (int64_t i = 0; i < Size(filler); ++i) filler[i] = static_cast<int32_t>(i % c.top_k);
  held.resize(c.loss_mask.size(), filler);
  return held;
}

// Keeps the rows it holds, and adds a row for each new token.
Merged VerlPartialRule(const TurnsCase& c) {
  Rows held;
  for (const GivenTurn& turn : c.turns) {
    const int64_t fresh = held.empty() ? Size(*turn.rows) : turn.output_tokens;
    held.insert(held.end(), turn.rows->end() - fresh, turn.rows->end());
  }
  return held;
}

// Assigns the rows to tokens from the first one of the prompt on; tokens without rows get zeros.
Merged VerlAgentLoopRule(const TurnsCase& c, const Json& input) {
  const GivenTurn& turn = c.turns[0];
  const int64_t before = input.value("prompt_width", int64_t{0});
  const int64_t first = before == 0 ? 0 : before - input.at("prompt_tokens").get<int64_t>();
  const int64_t all = before == 0 ? turn.tokens : before + input.at("response_width").get<int64_t>();
  Rows out(all, Row(c.layers * c.top_k));
  for (int64_t i = 0; i < Size(*turn.rows) && first + i < all; ++i) out[first + i] = (*turn.rows)[i];
  return out;
}

Merged FrameworkRule(const TurnsCase& c, const Json& input) {
  if (c.framework == "slime") return SlimeRule(c);
  if (c.framework == "miles") return MilesRule(c);
  if (c.framework == "skyrl") return SkyrlRule(c);
  return input.contains("rule") ? VerlPartialRule(c) : VerlAgentLoopRule(c, input);
}

// Our trajectory.

struct Ours {
  absl::Status status;
  Rows rows;
  int64_t conflicting_rows = 0;
  int64_t repeated_rows = 0;
};

// Returns `count` token ids. A longer list begins with the shorter ones, so each turn continues the tokens of the turn
// before.
std::vector<uint32_t> Tokens(int64_t count) {
  std::vector<uint32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<uint32_t>(1000 + i));
  return tokens;
}

void AddRows(const Geometry& geometry, const AppendPlan& append, int64_t row_ids, Rows& rows) {
  for (const AppendPiece& piece : append.pieces) {
    const auto& headers = std::get<std::vector<BlockHeader>>(piece.header.payload_kind);
    for (size_t b = 0; b < headers.size(); ++b) {
      const BlockView block{headers[b].rows, headers[b].codec, headers[b].plane_crc32c, piece.payload[b]};
      rows.resize(block.rows.end, Row(row_ids));
      int64_t to = 0;
      for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
        const LayerRouting& layer = geometry.layer(ordinal);
        Buffer ids(block.rows.size() * layer.top_k * layer.id_bytes());
        DecodeCut(geometry, ordinal, block.codec, 0, block.rows.size(), block.plane(geometry, ordinal), ids.span());
        for (int64_t i = 0; i < block.rows.size() * layer.top_k; ++i) {
          uint16_t id = 0;
          std::memcpy(&id, ids.data() + i * layer.id_bytes(), layer.id_bytes());
          rows[block.rows.begin + i / layer.top_k][to + i % layer.top_k] = id;
        }
        to += layer.top_k;
      }
    }
  }
}

Ours OurRule(const TurnsCase& c) {
  Ours ours;
  const Geometry geometry = Geometry::Uniform(static_cast<int32_t>(c.layers), static_cast<int32_t>(c.num_experts),
                                              static_cast<int32_t>(c.top_k));
  const BlockOptions blocks{kDefaultBlockRows, geometry.default_codec(), 1 << 20, 1 << 20};
  Trajectory trajectory({.sample = "golden"});
  for (const GivenTurn& given : c.turns) {
    const std::vector<uint32_t> tokens = Tokens(given.tokens);
    TurnRows rows{.tensor = {.encoding = Encoding::kBase64, .dtype = DType::kI32}, .row_start = given.start};
    if (given.payload) {
      rows.tensor.shape = {given.rows ? Size(*given.rows) : given.tokens - 1 - given.start, c.layers, c.top_k};
      rows.payload = {reinterpret_cast<const uint8_t*>(given.payload->data()), given.payload->size()};
    }
    // A turn of SkyRL has only new rows: they begin where the rows of the earlier turns end.
    if (c.framework == "skyrl") rows.row_start = trajectory.NextRow(tokens);
    const auto plan = PlanTurn({.tokens = tokens}, given.payload ? &rows : nullptr, {}, geometry, blocks, trajectory);
    ours.status = plan.status();
    if (!plan.ok()) return ours;
    for (const AppendPlan& append : plan->appends) AddRows(geometry, append, c.layers * c.top_k, ours.rows);
    ours.conflicting_rows += plan->decision.conflicting_rows;
    ours.repeated_rows += plan->decision.compare.size();
  }
  if (c.framework != "skyrl") return ours;
  // Tokens after the last turn have no rows. The caller must declare this, which it may only do if it does not train on
  // them.
  const bool trained = std::find(c.loss_mask.begin(), c.loss_mask.end(), 1) != c.loss_mask.end();
  const std::vector<uint32_t> tokens = Tokens(Size(c.loss_mask));
  const Turn last{.tokens = tokens, .missing_is_unrecorded = !trained, .seal = true};
  ours.status = PlanTurn(last, nullptr, {}, geometry, blocks, trajectory).status();
  return ours;
}

// Returns the number of rows that a later turn has sent again with different ids.
int64_t ChangedRows(const TurnsCase& c) {
  Rows first;
  int64_t changed = 0;
  for (const GivenTurn& turn : c.turns) {
    for (int64_t i = 0; i < Size(*turn.rows); ++i) {
      const int64_t row = turn.start + i;
      if (row < Size(first)) {
        changed += first[row] != (*turn.rows)[i];
      } else {
        first.push_back((*turn.rows)[i]);
      }
    }
  }
  return changed;
}

Outcome CompareWithOurs(const TurnsCase& c, const Merged& framework, int64_t first_row) {
  const Ours ours = OurRule(c);
  const int64_t last_row = c.turns.back().tokens - 1;
  const bool complete = ours.status.ok() && Size(ours.rows) == last_row;
  if (!framework) {
    // If the framework raises, we must reject the turn, or count overlapping rows, or leave rows open for the next
    // turn.
    const bool overlaps = ours.repeated_rows > 0 && ours.conflicting_rows == ChangedRows(c);
    const bool told = !ours.status.ok() || !complete || overlaps;
    return told ? Passed() : Failed("the framework raises, but we report no problem");
  }
  if (!complete) {
    // verl fills rows that the engine did not send with zeros; our code must then report a wrong number of rows.
    const bool padded = c.framework == "verl" && c.turns.size() == 1 && Size(*c.turns[0].rows) != last_row;
    if (padded && GetErrorDetail(ours.status).value_or(ErrorDetail{}).reason == Reason::kRowCount) return Passed();
    return Failed(absl::StrCat("ours has ", ours.rows.size(), " of ", last_row, " rows: ", ours.status.ToString()));
  }
  int64_t differing = 0;
  for (int64_t row = 0; row < last_row; ++row) differing += ours.rows[row] != framework->at(first_row + row);
  const int64_t changed = c.framework == "skyrl" ? 0 : ChangedRows(c);
  if (ours.conflicting_rows != changed) {
    return Failed(absl::StrCat(ours.conflicting_rows, " conflicting rows told, ", changed, " there are"));
  }
  if (differing > changed) {
    return Failed(absl::StrCat(differing, " rows differ from the framework's, and only ", changed, " are conflicts"));
  }
  return Passed();
}

Outcome CompareWithExpect(const TurnsCase& c, const Merged& framework, const Json& expect) {
  if (expect.value("error", false)) return framework ? Failed("the rule gives rows, the framework raises") : Passed();
  if (!framework) return Failed("the rule raises, the framework gives rows");
  const Json shape = {framework->size(), c.layers, c.top_k};
  if (shape != expect.at("shape")) return Failed("the rule gives the shape " + shape.dump());
  const auto ids = RowsOf(expect.at("ids_int32_le").get<std::string>(), c.layers * c.top_k);
  return framework == ids ? Passed() : Failed("the rule gives other ids");
}

// Compares the first row that is requested from the engine in the next turn. miles requests rows from the last token
// that it holds, even if that token changed.
Outcome RunRequest(const Json& input, const Json& expect) {
  const auto held = input.at("held_tokens").get<std::vector<uint32_t>>();
  const auto prompt = input.at("prompt_tokens").get<std::vector<uint32_t>>();
  const int64_t start = std::max<int64_t>(0, Size(held) - 1);
  const bool fits = Size(prompt) >= start && std::equal(held.begin(), held.begin() + start, prompt.begin());
  if (fits == expect.value("error", false)) return Failed("the rule and the framework do not agree");
  if (fits && expect.at("start") != start) return Failed(absl::StrCat("the rule asks for rows from ", start));

  Trajectory trajectory({.sample = "golden"});
  const Geometry geometry = Geometry::Uniform(1, 8, 1);
  const std::vector<uint8_t> ids(start, 1);
  const TurnRows rows{.tensor = {.dtype = DType::kU8, .shape = {start, 1, 1}}, .payload = ids};
  const auto plan = PlanTurn({.tokens = held}, &rows, {}, geometry, {256, Codec::kRaw, 1 << 20, 1 << 20}, trajectory);
  if (!plan.ok()) return Failed(plan.status().ToString());
  const int64_t ours = trajectory.NextRow(prompt);
  const bool goes_back = ours < start;
  return goes_back == !fits ? Passed() : Failed(absl::StrCat("ours asks for rows from ", ours));
}

Outcome RunTurns(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (input.contains("held_tokens")) return RunRequest(input, expect);
  const TurnsCase c = CaseOf(input);
  const Merged framework = FrameworkRule(c, input);
  const Outcome rule = CompareWithExpect(c, framework, expect);
  if (rule.verdict != Outcome::Verdict::kPassed) return rule;
  const bool rectangle = input.contains("prompt_width");
  return CompareWithOurs(c, framework,
                         rectangle ? input["prompt_width"].get<int64_t>() - input["prompt_tokens"].get<int64_t>() : 0);
}

}  // namespace

Kind CodecTurnsKind() { return {{"codec_turns"}, RunTurns}; }

}  // namespace routing_replay::golden
