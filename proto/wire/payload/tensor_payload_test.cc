#include "proto/wire/payload/tensor_payload.h"

#include <zstd.h>

#include <cstring>
#include <random>

#include "proto/wire/block/block.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/simd_targets_test_util.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using testing::MakeRandomRoutes;
using testing::RandomRoutes;

std::string SlowBase64(const std::string& bytes) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

int ElementBytes(DType dtype) {
  return dtype <= DType::kI8 ? 1 : dtype <= DType::kI16 ? 2 : dtype == DType::kI32 ? 4 : 8;
}

std::string NpyHeader(DType dtype, const std::vector<int64_t>& shape) {
  static constexpr const char* kDescr[] = {"", "|u1", "|i1", "<u2", "<i2", "<i4", "<i8"};
  std::string dict =
      absl::StrCat("{'descr': '", kDescr[static_cast<int>(dtype)], "', 'fortran_order': False, 'shape': (", shape[0],
                   ", ", shape[1], ", ", shape[2], "), }");
  dict.append(117 - dict.size(), ' ');
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(dict.size()));
  header.push_back('\0');
  return header.append(dict);
}

// A payload of an engine.
struct Message {
  TensorDescription description;
  std::string payload;
};

Message Encode(const std::vector<std::vector<int64_t>>& rows, int64_t layers, int64_t k, DType dtype, Encoding encoding,
               Compression compression) {
  Message m{.description = {.encoding = encoding, .compression = compression}};
  for (const auto& row : rows) {
    for (const int64_t id : row) m.payload.append(reinterpret_cast<const char*>(&id), ElementBytes(dtype));
  }
  const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size()), layers, k};
  const bool npy = encoding == Encoding::kNpy || encoding == Encoding::kBase64Npy;
  if (npy) {
    m.payload = NpyHeader(dtype, shape) + m.payload;
  } else {
    m.description.dtype = dtype;
    m.description.shape = shape;
  }
  if (encoding == Encoding::kBase64 || encoding == Encoding::kBase64Npy) m.payload = SlowBase64(m.payload);
  if (compression == Compression::kZstd) {
    m.description.raw_size = static_cast<int64_t>(m.payload.size());
    std::string frame(ZSTD_compressBound(m.payload.size()), '\0');
    frame.resize(ZSTD_compress(frame.data(), frame.size(), m.payload.data(), m.payload.size(), 1));
    m.payload = frame;
  }
  return m;
}

absl::StatusOr<DecodedRows> Decode(const Geometry& geometry, const Message& m, const DecodeOptions& options = {}) {
  return DecodeTensor(geometry, m.description, {reinterpret_cast<const uint8_t*>(m.payload.data()), m.payload.size()},
                      options);
}

std::vector<Geometry> Geometries() {
  std::vector<Geometry> out;
  for (const auto& [experts, k] : std::vector<std::pair<int, int>>{{1, 1},
                                                                   {2, 1},
                                                                   {8, 1},
                                                                   {8, 2},
                                                                   {64, 6},
                                                                   {128, 8},
                                                                   {255, 4},
                                                                   {256, 8},
                                                                   {257, 8},
                                                                   {512, 10},
                                                                   {768, 12},
                                                                   {896, 16},
                                                                   {65535, 22}}) {
    out.push_back(
        *Geometry::Create({.num_layers = 7, .moe_layer_ids = {1, 2, 5, 6}, .num_experts = {experts}, .top_k = {k}}));
  }
  // Neighbouring layers that have the same E but different K, and others that have the same K but different E.
  out.push_back(*Geometry::Create(
      {.num_layers = 4, .moe_layer_ids = {0, 1, 2, 3}, .num_experts = {64, 64, 512, 64}, .top_k = {8, 4, 8, 1}}));
  out.push_back(*Geometry::Create(
      {.num_layers = 4, .moe_layer_ids = {0, 2, 3}, .num_experts = {60, 300, 256}, .top_k = {2, 6, 3}}));
  return out;
}

DType RandomDType(std::mt19937_64& random, const Geometry& geometry) {
  int64_t largest = 0;
  for (const LayerRouting& layer : geometry.layers()) largest = std::max<int64_t>(largest, layer.num_experts - 1);
  static constexpr int64_t kMax[] = {0, 255, 127, 65535, 32767, INT32_MAX, INT64_MAX};
  while (true) {
    const auto dtype = static_cast<DType>(1 + random() % 6);
    if (largest <= kMax[static_cast<int>(dtype)]) return dtype;
  }
}

// Encodes random routes as a message and checks that it decodes to the same routes.
void RoundTrip(const Geometry& geometry, std::mt19937_64& random) {
  const auto slots = static_cast<int64_t>(random() % 150);
  const RandomRoutes routes = MakeRandomRoutes(geometry, std::max<int64_t>(slots, 1), random());
  int64_t k_axis = 0;
  for (const LayerRouting& layer : geometry.layers()) k_axis = std::max<int64_t>(k_axis, layer.top_k);
  // The layer axis.
  TensorDescription basis;
  basis.layer_basis = static_cast<LayerBasis>(random() % 4);
  std::vector<int> columns;
  if (basis.layer_basis == LayerBasis::kMoeLayers ||
      (basis.layer_basis == LayerBasis::kUnspecified && random() % 2 == 0)) {
    for (int i = 0; i < geometry.num_moe_layers(); ++i) columns.push_back(i);
  } else {
    for (int g = 0; g < geometry.num_layers(); ++g) columns.push_back(geometry.FindOrdinal(g).value_or(-1));
  }
  if (basis.layer_basis == LayerBasis::kExplicit) {
    std::vector<int> order(geometry.num_layers());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), random);
    columns.clear();
    for (const int g : order) {
      basis.layer_ids.push_back(g);
      columns.push_back(geometry.FindOrdinal(g).value_or(-1));
    }
  }
  const DType dtype = RandomDType(random, geometry);
  const bool has_sign = dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 || dtype == DType::kI64;
  const int32_t block_rows = 32 << random() % 4;
  DecodeOptions options{.row_start = static_cast<int64_t>(random() % 1000),
                        .block_rows = block_rows,
                        .codec = random() % 2 == 0 ? Codec::kRaw : Codec::kPacked};
  // Adds unrecorded ranges at random places: before the first slot, between slots or after the last one.
  for (int64_t slot = 0, next = options.row_start; slot <= slots && random() % 3 != 0;) {
    const auto rows = static_cast<int64_t>(1 + random() % 40);
    options.unrecorded.push_back(RowRange::OfSize(next + slot, rows));
    next += rows;
    slot += static_cast<int64_t>(1 + random() % 100);
  }
  const RowRange all = RowRange::OfSize(options.row_start, slots + TotalRows(options.unrecorded));
  options.expected_rows = all.size();
  // Absolute row of every slot, and the slots that are marked missing as a whole.
  std::vector<int64_t> row_of;
  for (RowRange r : Subtract(all, options.unrecorded)) {
    for (int64_t row = r.begin; row < r.end; ++row) row_of.push_back(row);
  }
  std::vector<std::vector<int64_t>> rows;
  std::vector<bool> recorded(all.size(), false);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const bool missing = has_sign && random() % 10 == 0;
    recorded[row_of[slot] - all.begin] = !missing;
    std::vector<int64_t>& row = rows.emplace_back();
    for (const int ordinal : columns) {
      for (int64_t k = 0; k < k_axis; ++k) {
        if (ordinal < 0 || k >= geometry.layer(ordinal).top_k) {
          row.push_back(static_cast<int64_t>(random()));
        } else {
          row.push_back(missing ? -1 : routes.layers[ordinal][slot * geometry.layer(ordinal).top_k + k]);
        }
      }
    }
  }
  if (random() % 2 == 0) {  // The rows to take are surrounded by other rows.
    const auto before = static_cast<int64_t>(random() % 70);
    options.take = RowRange::OfSize(before, slots);
    const std::vector<int64_t> other(columns.size() * k_axis, static_cast<int64_t>(random()));
    rows.insert(rows.begin(), before, other);
    rows.insert(rows.end(), random() % 70, other);
  }
  Message m = Encode(rows, static_cast<int64_t>(columns.size()), k_axis, dtype, static_cast<Encoding>(1 + random() % 4),
                     static_cast<Compression>(1 + random() % 2));
  m.description.layer_basis = basis.layer_basis;
  m.description.layer_ids = basis.layer_ids;

  ASSERT_OK_AND_ASSIGN(const DecodedRows decoded, Decode(geometry, m, options));
  EXPECT_EQ(decoded.rows, all);
  std::vector<RowRange> expected_holes, expected_blocks;
  for (int64_t row = all.begin; row < all.end; ++row) {
    if (!recorded[row - all.begin]) {
      AppendMerged(expected_holes, RowRange::OfSize(row, 1));
    } else if (!expected_blocks.empty() && expected_blocks.back().end == row && row % block_rows != 0) {
      ++expected_blocks.back().end;
    } else {
      expected_blocks.push_back(RowRange::OfSize(row, 1));
    }
  }
  EXPECT_EQ(decoded.unrecorded, expected_holes);
  ASSERT_EQ(decoded.blocks.size(), expected_blocks.size());
  for (size_t b = 0; b < decoded.blocks.size(); ++b) {
    const BlockView block = decoded.blocks[b].view();
    ASSERT_EQ(block.rows, expected_blocks[b]);
    ASSERT_OK(CheckShape(geometry, block, block_rows));
    ASSERT_OK(CheckCrc(geometry, block));
    for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
      const LayerRouting& layer = geometry.layer(i);
      std::vector<uint8_t> ids(block.rows.size() * layer.top_k * layer.id_bytes());
      DecodeCut(geometry, i, block.codec, 0, block.rows.size(), block.plane(geometry, i), absl::MakeSpan(ids));
      for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
        const int64_t slot = std::find(row_of.begin(), row_of.end(), row) - row_of.begin();
        for (int32_t k = 0; k < layer.top_k; ++k) {
          uint16_t id = 0;
          std::memcpy(&id, ids.data() + ((row - block.rows.begin) * layer.top_k + k) * layer.id_bytes(),
                      layer.id_bytes());
          ASSERT_EQ(id, routes.layers[i][slot * layer.top_k + k]) << "row " << row << " layer " << i;
        }
      }
    }
  }
}

TEST(TensorPayloadTest, EveryFormDecodesToWhatWentIn) {
  testing::ForEachSimdTarget([] {
    std::mt19937_64 random(3);
    for (const Geometry& geometry : Geometries()) {
      SCOPED_TRACE(geometry.DebugString());
      for (int round = 0; round < 25; ++round) RoundTrip(geometry, random);
    }
  });
}

class RejectionTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 70;
  // MoE layers 3 and 5 of 6, E 64, K 4; rows 100 … 169.
  const Geometry geometry_ =
      *Geometry::Create({.num_layers = 6, .moe_layer_ids = {3, 5}, .num_experts = {64}, .top_k = {4}});
  const DecodeOptions options_{.row_start = 100};

  std::vector<std::vector<int64_t>> Good() const {
    const RandomRoutes routes = MakeRandomRoutes(geometry_, kRows, 1);
    std::vector<std::vector<int64_t>> rows(kRows);
    for (int64_t row = 0; row < kRows; ++row) {
      for (const auto& layer : routes.layers) rows[row].insert(rows[row].end(), &layer[row * 4], &layer[row * 4] + 4);
    }
    return rows;
  }
  void Expect(const Message& m, Reason reason, absl::string_view field, std::optional<int64_t> row = {},
              std::optional<int32_t> layer = {}) {
    const absl::Status status = Decode(geometry_, m, options_).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, reason));
    const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
    EXPECT_EQ(detail.row, row);
    EXPECT_EQ(detail.layer, layer);
    EXPECT_EQ(detail.field, field);
  }
  Message Int32(const std::vector<std::vector<int64_t>>& rows) const {
    return Encode(rows, 2, 4, DType::kI32, Encoding::kRaw, Compression::kNone);
  }
};

TEST_F(RejectionTest, IdsNameRowAndLayer) {
  testing::ForEachSimdTarget([this] {
    for (const int64_t id :
         {int64_t{64}, int64_t{256}, int64_t{65536}, int64_t{INT32_MAX}, int64_t{-2}, int64_t{INT32_MIN}}) {
      auto rows = Good();
      rows[66][4 + 1] = id;
      Expect(Int32(rows), Reason::kIdRange, "payload", 166, 5);
    }
    auto rows = Good();
    rows[10][2] = -1;
    Expect(Int32(rows), Reason::kPartialRow, "payload", 110, 3);
    rows = Good();
    for (int k = 0; k < 4; ++k) rows[9][4 + k] = -1;  // One layer of two.
    Expect(Int32(rows), Reason::kPartialRow, "payload", 109, 5);
    rows = Good();
    rows[69][7] = rows[69][4];
    Expect(Int32(rows), Reason::kDuplicateId, "payload", 169, 5);
    rows = Good();
    for (auto& row : rows) std::fill(row.begin() + 4, row.end(), 0);
    Expect(Int32(rows), Reason::kAllZeroLayer, "payload", {}, 5);
  });
}

// If the tensor's elements are as wide as the stored ids, other code checks them than if they are wider. Both must
// report the same errors.
TEST_F(RejectionTest, NarrowIdsNameRowAndLayerToo) {
  testing::ForEachSimdTarget([this] {
    const auto narrow = [](const std::vector<std::vector<int64_t>>& rows, DType dtype) {
      return Encode(rows, 2, 4, dtype, Encoding::kRaw, Compression::kNone);
    };
    for (const int64_t id : {64, 127}) {
      auto rows = Good();
      rows[66][4 + 1] = id;
      rows[3][0] = rows[3][1];  // There is a duplicate before it, but ids out of range are reported first.
      for (const DType dtype : {DType::kU8, DType::kI8, DType::kI16}) {
        Expect(narrow(rows, dtype), Reason::kIdRange, "payload", 166, 5);
      }
    }
    auto rows = Good();
    rows[10][2] = -1;
    Expect(narrow(rows, DType::kI8), Reason::kPartialRow, "payload", 110, 3);
    Expect(narrow(rows, DType::kU8), Reason::kIdRange, "payload", 110, 3);  // 255
    rows = Good();
    rows[69][7] = rows[69][4];
    Expect(narrow(rows, DType::kU8), Reason::kDuplicateId, "payload", 169, 5);
    rows = Good();
    for (auto& row : rows) std::fill(row.begin() + 4, row.end(), 0);
    Expect(narrow(rows, DType::kU8), Reason::kAllZeroLayer, "payload", {}, 5);
  });
}

TEST_F(RejectionTest, ShapesLengthsAndEncodings) {
  Message m = Int32(Good());
  m.description.shape = {kRows, 3, 4};
  Expect(m, Reason::kLength, "payload");
  m = Encode(Good(), 2, 4, DType::kI32, Encoding::kRaw, Compression::kNone);
  m.description.shape = {kRows, 8};
  Expect(m, Reason::kShape, "append.tensor.shape");
  m.description.shape = {kRows, 4, 2};
  Expect(m, Reason::kShape, "append.tensor.shape");
  m.description.shape = {int64_t{1} << 40, int64_t{1} << 40, 1};
  Expect(m, Reason::kShape, "append.tensor.shape");
  m = Int32(Good());
  m.description.dtype = DType::kUnspecified;
  Expect(m, Reason::kDType, "append.tensor.dtype");
  m = Int32(Good());
  m.description.layer_basis = LayerBasis::kAllLayers;
  Expect(m, Reason::kShape, "append.tensor.shape");
  m.description.layer_basis = LayerBasis::kExplicit;
  m.description.layer_ids = {3, 3};
  Expect(m, Reason::kField, "append.tensor.layer_ids", {}, 3);
  m.description.layer_ids = {3, 4};
  Expect(m, Reason::kField, "append.tensor.layer_ids", {}, 5);
  m.description.layer_ids = {3, 6};
  Expect(m, Reason::kField, "append.tensor.layer_ids", {}, 6);
  m = Encode(Good(), 2, 4, DType::kI32, Encoding::kNpy, Compression::kNone);
  m.description.dtype = DType::kU8;
  Expect(m, Reason::kDType, "append.tensor.dtype");
}

// Damaged input is rejected or decoded, but never causes a crash.
TEST_F(RejectionTest, DamagedMessagesAreRejectedOrDecode) {
  std::mt19937_64 random(9);
  for (const Encoding encoding : {Encoding::kRaw, Encoding::kNpy, Encoding::kBase64, Encoding::kBase64Npy}) {
    for (const Compression compression : {Compression::kNone, Compression::kZstd}) {
      const Message good = Encode(Good(), 2, 4, DType::kI16, encoding, compression);
      ASSERT_OK(Decode(geometry_, good, options_));
      for (size_t size = 0; size < good.payload.size(); size += 1 + size / 40) {
        Message cut = good;
        cut.payload.resize(size);
        EXPECT_EQ(Decode(geometry_, cut, options_).status().code(), absl::StatusCode::kInvalidArgument) << size;
      }
      for (int round = 0; round < 300; ++round) {
        Message flipped = good;
        flipped.payload[random() % std::min<size_t>(flipped.payload.size(), 300)] ^=
            static_cast<char>(1 + random() % 255);
        const absl::Status status = Decode(geometry_, flipped, options_).status();
        EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
      }
    }
  }
}

TEST_F(RejectionTest, CompressionBombs) {
  std::string zeros(1 << 20, '\0'), frame(ZSTD_compressBound(zeros.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), zeros.data(), zeros.size(), 1));
  Message m{.description = {.compression = Compression::kZstd,
                            .raw_size = 1 << 20,
                            .dtype = DType::kU8,
                            .shape = {kRows, 2, 4}},
            .payload = frame};
  Expect(m, Reason::kLength, "payload");
  m.description.raw_size = 100;
  Expect(m, Reason::kLength, "append.tensor.raw_size");
  DecodeOptions small = options_;
  small.max_payload_bytes = 1000;
  m.description.raw_size = 1 << 20;
  EXPECT_THAT(Decode(geometry_, m, small), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  m.description.raw_size = 1 << 20;
  m.payload += frame;
  Expect(m, Reason::kEncoding, "payload");
  m.payload = std::string("\x50\x2a\x4d\x18\x00\x00\x00\x00", 8);  // A skippable frame.
  m.description.raw_size = 0;
  Expect(m, Reason::kEncoding, "payload");
}

TEST_F(RejectionTest, RowCounts) {
  DecodeOptions options{.row_start = 5, .unrecorded = {{6, 8}}, .expected_rows = kRows};
  EXPECT_THAT(Decode(geometry_, Int32(Good()), options), Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
  options.expected_rows = kRows + 2;
  EXPECT_OK(Decode(geometry_, Int32(Good()), options));
  options.unrecorded = {{3, 5}};
  EXPECT_THAT(Decode(geometry_, Int32(Good()), options), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  options = {.row_start = kMaxRows - 3};
  EXPECT_THAT(Decode(geometry_, Int32(Good()), options), Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
}

// The unrecorded ranges come from the caller, so they may be anything: ends near INT64_MAX must not overflow, and
// ranges that are empty, out of order or outside the rows are rejected.
TEST_F(RejectionTest, UnrecordedRangesThatAreNotNormal) {
  for (const std::vector<RowRange>& list : std::vector<std::vector<RowRange>>{{{INT64_MIN, INT64_MAX}},
                                                                              {{0, INT64_MAX}, {INT64_MIN, 0}},
                                                                              {{0, INT64_MAX}, {0, INT64_MAX}},
                                                                              {{104, 104}},
                                                                              {{105, 104}},
                                                                              {{99, 101}},
                                                                              {{104, 106}, {106, 107}},
                                                                              {{104, 106}, {101, 102}},
                                                                              {{kMaxRows - 1, kMaxRows}}}) {
    DecodeOptions options = options_;
    options.unrecorded = list;
    const absl::Status status = Decode(geometry_, Int32(Good()), options).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, "append.unrecorded");
  }
}

TEST_F(RejectionTest, NumbersThatAreNoDType) {
  for (const int number : {0, 7, 255}) {
    Message m = Int32(Good());
    m.description.dtype = static_cast<DType>(number);
    Expect(m, Reason::kDType, "append.tensor.dtype");
    m.payload.clear();
    Expect(m, Reason::kDType, "append.tensor.dtype");
  }
}

// With K = 1 a row cannot have the same id twice, and a layer whose ids are all 0 is legal.
TEST_F(RejectionTest, OneIdPerRowMayBeZeroThroughout) {
  const Geometry geometry =
      *Geometry::Create({.num_layers = 2, .moe_layer_ids = {0, 1}, .num_experts = {64}, .top_k = {1}});
  const std::vector<std::vector<int64_t>> rows(kRows, {0, 0});
  EXPECT_OK(Decode(geometry, Encode(rows, 2, 1, DType::kU8, Encoding::kRaw, Compression::kNone), options_));
}

// -1 marks a missing row in signed types. In unsigned types the same bits are an ordinary id.
TEST_F(RejectionTest, AllOnesWithoutASignAreIds) {
  const Geometry geometry =
      *Geometry::Create({.num_layers = 1, .moe_layer_ids = {0}, .num_experts = {256}, .top_k = {1}});
  const std::vector<std::vector<int64_t>> rows(3, {255});
  ASSERT_OK_AND_ASSIGN(const DecodedRows ids,
                       Decode(geometry, Encode(rows, 1, 1, DType::kU8, Encoding::kRaw, Compression::kNone), options_));
  EXPECT_TRUE(ids.unrecorded.empty());
  ASSERT_OK_AND_ASSIGN(const DecodedRows marks,
                       Decode(geometry, Encode(rows, 1, 1, DType::kI8, Encoding::kRaw, Compression::kNone), options_));
  EXPECT_EQ(marks.unrecorded, (std::vector<RowRange>{{100, 103}}));
  EXPECT_TRUE(marks.blocks.empty());
}

// Every other row is marked missing, so each of the others becomes a block of its own. The number of marked ranges is
// limited.
TEST(DecodeTensorTest, TooManyRunsOfMarkedRowsAreRejected) {
  const Geometry geometry = Geometry::Uniform(1, 8, 1);
  const auto decode = [&](size_t ranges) {
    std::vector<int8_t> ids(2 * ranges, 1);
    for (size_t i = 0; i < ids.size(); i += 2) ids[i] = -1;
    const TensorDescription description{.dtype = DType::kI8, .shape = {static_cast<int64_t>(ids.size()), 1, 1}};
    return DecodeTensor(geometry, description, testing::AsBytes(ids), {}).status();
  };
  EXPECT_OK(decode(kMaxUnrecordedRanges));
  EXPECT_THAT(decode(kMaxUnrecordedRanges + 1), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
}

// MoE layers 1, 2 and 4 of 6.
Geometry MakeGeometry() {
  return *Geometry::Create({.num_layers = 6, .moe_layer_ids = {1, 2, 4}, .num_experts = {8}, .top_k = {2}});
}

absl::StatusOr<std::vector<int32_t>> Columns(LayerBasis basis, int64_t layers, std::vector<int32_t> ids = {}) {
  return MoeColumns(MakeGeometry(), {.layer_basis = basis, .layer_ids = std::move(ids)}, layers);
}

void ExpectFails(const absl::Status& status, Reason reason, absl::string_view field,
                 std::optional<int32_t> layer = {}) {
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, reason));
  const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
  EXPECT_EQ(detail.field, absl::StrCat("append.tensor.", field));
  EXPECT_EQ(detail.layer, layer);
}

const std::vector<int32_t> kAll = {1, 2, 4}, kMoe = {0, 1, 2};

TEST(ColumnsTest, TheAxisDecidesWhereNothingIsSaid) {
  for (int64_t layers = 0; layers < 10; ++layers) {
    const auto columns = Columns(LayerBasis::kUnspecified, layers);
    if (layers == 6) {
      ASSERT_OK(columns);
      EXPECT_EQ(*columns, kAll);
    } else if (layers == 3) {
      ASSERT_OK(columns);
      EXPECT_EQ(*columns, kMoe);
    } else {
      ExpectFails(columns.status(), Reason::kShape, "shape");
    }
  }
}

TEST(ColumnsTest, TheAxisMustBeThatOfTheBasis) {
  for (int64_t layers = 0; layers < 10; ++layers) {
    const auto all = Columns(LayerBasis::kAllLayers, layers), moe = Columns(LayerBasis::kMoeLayers, layers);
    if (layers == 6) {
      EXPECT_EQ(*all, kAll);
    } else {
      ExpectFails(all.status(), Reason::kShape, "shape");
    }
    if (layers == 3) {
      EXPECT_EQ(*moe, kMoe);
    } else {
      ExpectFails(moe.status(), Reason::kShape, "shape");
    }
  }
}

TEST(ColumnsTest, ExplicitIdsInAnyOrderWithAnyDenseLayers) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids = {1, 2, 4};
    for (const int32_t dense : {0, 3, 5}) {
      if (random() % 2 == 0) ids.push_back(dense);
    }
    std::shuffle(ids.begin(), ids.end(), random);
    ASSERT_OK_AND_ASSIGN(const auto columns, Columns(LayerBasis::kExplicit, static_cast<int64_t>(ids.size()), ids));
    ASSERT_EQ(columns.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ids[columns[i]], kAll[i]);
  }
}

TEST(ColumnsTest, ExplicitIdsThatDoNotFit) {
  constexpr LayerBasis kExplicit = LayerBasis::kExplicit;
  ExpectFails(Columns(kExplicit, 3).status(), Reason::kShape, "layer_ids");
  ExpectFails(Columns(kExplicit, 4, {1, 2, 4}).status(), Reason::kShape, "layer_ids");
  ExpectFails(Columns(kExplicit, 2, {1, 2, 4}).status(), Reason::kShape, "layer_ids");
  ExpectFails(Columns(kExplicit, 3, {1, 2, 3}).status(), Reason::kField, "layer_ids", 4);
  ExpectFails(Columns(kExplicit, 0).status(), Reason::kField, "layer_ids", 1);
  ExpectFails(Columns(kExplicit, 4, {1, 2, 4, 2}).status(), Reason::kField, "layer_ids", 2);
  ExpectFails(Columns(kExplicit, 5, {1, 0, 2, 4, 0}).status(), Reason::kField, "layer_ids", 0);
  for (const int32_t id : {-1, 6, INT32_MAX, INT32_MIN}) {
    ExpectFails(Columns(kExplicit, 4, {1, 2, 4, id}).status(), Reason::kField, "layer_ids", id);
  }
}

TEST(ColumnsTest, IdsBelongToExplicitAlone) {
  for (const LayerBasis basis : {LayerBasis::kUnspecified, LayerBasis::kAllLayers, LayerBasis::kMoeLayers}) {
    ExpectFails(Columns(basis, 3, {1, 2, 4}).status(), Reason::kField, "layer_ids");
  }
}

}  // namespace
}  // namespace routing_replay
