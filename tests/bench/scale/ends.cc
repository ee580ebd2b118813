#include "tests/bench/scale/ends.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/client.h"

namespace routing_replay::bench {
namespace {

constexpr char kRun[] = "scale";
constexpr std::chrono::seconds kTimeout(600);
constexpr int64_t kVariations = 4, kMostNames = 4096;

std::string SampleId(int64_t sample) { return absl::StrCat("step-1/", sample); }
Geometry GeometryOf(const Shape& shape) { return Geometry::Uniform(shape.layers, Shape::kExperts, Shape::kTopK); }

uint8_t Id(int64_t variation, int64_t row, int64_t layer, int slot) {
  return static_cast<uint8_t>((variation + 7 * row + 3 * layer + slot * (Shape::kExperts / Shape::kTopK)) %
                              Shape::kExperts);
}

// The ids of each variation, as [rows][layers][K] or [layers][rows][K].
std::vector<std::vector<uint8_t>> Ids(const Shape& shape, bool by_layer) {
  std::vector<std::vector<uint8_t>> all(kVariations);
  const int64_t outer = by_layer ? shape.layers : shape.rows, inner = by_layer ? shape.rows : shape.layers;
  for (int64_t variation = 0; variation < kVariations; ++variation) {
    for (int64_t i = 0; i < outer * inner * Shape::kTopK; ++i) {
      const int64_t first = i / Shape::kTopK / inner, second = i / Shape::kTopK % inner;
      const auto [row, layer] = by_layer ? std::pair(second, first) : std::pair(first, second);
      all[variation].push_back(Id(variation, row, layer, static_cast<int>(i % Shape::kTopK)));
    }
  }
  return all;
}

class Writer final : public Role {
 public:
  explicit Writer(const Shape& shape) : shape_(shape), ids_(Ids(shape, /*by_layer=*/false)) {}

  absl::StatusOr<std::string> Do(absl::Span<const std::string> command) override {
    RR_ASSIGN_OR_RETURN(const auto client, Client::Connect({.endpoint = command[1]}));
    RR_ASSIGN_OR_RETURN(const auto run, client->OpenRun(kRun, GeometryOf(shape_)));
    const auto appender = run->NewAppender({.max_queued_bytes = kQueuedBytes});
    const TensorDescription tensor{.dtype = DType::kU8, .shape = {shape_.rows, shape_.layers, Shape::kTopK}};
    for (int64_t i = 0; i < shape_.samples; ++i) {
      RR_RETURN_IF_ERROR(appender->Append({.sample = SampleId(i), .seal = true}, tensor, ids_[i % kVariations]));
    }
    RR_RETURN_IF_ERROR(appender->Flush(kTimeout));
    return "";
  }

 private:
  const Shape shape_;
  const std::vector<std::vector<uint8_t>> ids_;
};

// Compares what arrives with the expected ids. `samples` has the sample number of each index of the request.
class Compared final : public ReadSink {
 public:
  Compared(const Shape& shape, const std::vector<std::vector<uint8_t>>& ids, const std::vector<int64_t>& samples)
      : shape_(shape), ids_(ids), samples_(samples) {
    staging_.reserve(samples.size() * shape.sample_bytes());
  }

  absl::Status OnRecord(const SampleRecord& record) override {
    if (record.status == SampleStatus::kOk) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(SampleId(samples_[record.index]), " cannot be read: ", record.message));
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    const std::vector<uint8_t>& ids = ids_[samples_[piece.sample_index] % kVariations];
    const int64_t bytes = piece.rows.size() * Shape::kTopK;
    for (int32_t i = 0; i < piece.layer_count; ++i) {
      const int64_t at = ((piece.layer_begin + i) * shape_.rows + piece.rows.begin) * Shape::kTopK;
      if (std::memcmp(piece.bytes.data() + i * bytes, ids.data() + at, bytes) != 0) {
        return absl::DataLossError("the ids differ from the appended ones");
      }
    }
    read_ += piece.layer_count * bytes;
    return absl::OkStatus();
  }
  std::vector<uint8_t>* staging() override { return &staging_; }
  int64_t read() const { return read_; }

 private:
  const Shape& shape_;
  const std::vector<std::vector<uint8_t>>& ids_;
  const std::vector<int64_t>& samples_;
  std::vector<uint8_t> staging_;
  int64_t read_ = 0;
};

class Readers final : public Role {
 public:
  explicit Readers(const Shape& shape) : shape_(shape), ids_(Ids(shape, /*by_layer=*/true)) {}

  absl::StatusOr<std::string> Do(absl::Span<const std::string> command) override {
    std::vector<absl::Status> ends(shape_.ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      threads.emplace_back([&, rank] { ends[rank] = ReadRank(command[1], rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& end : ends) {
      if (!end.ok()) return end;
    }
    return "";
  }

 private:
  absl::Status ReadRank(const std::string& endpoint, int rank) const {
    RR_ASSIGN_OR_RETURN(const auto client, Client::Connect({.endpoint = endpoint}));
    RR_ASSIGN_OR_RETURN(const auto run, client->JoinRun(kRun));
    const int64_t at_once = std::clamp(kReadBytes / shape_.ranks / shape_.sample_bytes(), int64_t{1}, kMostNames);
    for (int64_t next = rank; next < shape_.samples;) {
      std::vector<int64_t> samples;
      ReadRequest request;
      for (; next < shape_.samples && static_cast<int64_t>(samples.size()) < at_once; next += shape_.ranks) {
        samples.push_back(next);
        request.samples.push_back({.handle = run->Handle(SampleId(next))});
      }
      Compared sink(shape_, ids_, samples);
      RR_RETURN_IF_ERROR(run->Read(std::move(request), sink, kTimeout));
      if (sink.read() != static_cast<int64_t>(samples.size()) * shape_.sample_bytes()) {
        return absl::DataLossError("fewer ids than were appended");
      }
    }
    return absl::OkStatus();
  }

  const Shape shape_;
  const std::vector<std::vector<uint8_t>> ids_;
};

}  // namespace

std::unique_ptr<Role> MakeWriter(const Shape& shape) { return std::make_unique<Writer>(shape); }
std::unique_ptr<Role> MakeReaders(const Shape& shape) { return std::make_unique<Readers>(shape); }

}  // namespace routing_replay::bench
