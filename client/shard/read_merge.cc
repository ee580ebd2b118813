#include "client/shard/read_merge.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/reader/read_checker.h"
#include "client/shard/errors.h"

namespace routing_replay::client {
namespace {

// Samples of one search: what bounds a message of states.
constexpr size_t kMaxSearched = 4096;

}  // namespace

ReadMerge::ReadMerge(ReadRequest request, size_t layers, Places& places)
    : request_(std::move(request)), layers_(layers), places_(places), samples_(request_.samples.size()) {
  std::vector<size_t> all, member_of;
  for (size_t sample = 0; sample < samples_.size(); ++sample) {
    all.push_back(sample);
    member_of.push_back(places_.FindOrNatural(request_.producer, HandleOf(sample)));
  }
  AddStreams(all, member_of);
}

int64_t ReadMerge::HandleOf(size_t sample) const {
  const SampleRead& asked = request_.samples[sample];
  return asked.sample.empty() ? asked.handle : SampleHandle(asked.sample);
}

void ReadMerge::AddStreams(absl::Span<const size_t> samples, absl::Span<const size_t> member_of, bool wait_for_begin) {
  std::map<size_t, size_t> stream_of;  // By member.
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto [found, is_new] = stream_of.try_emplace(member_of[i], streams_.size());
    if (is_new) streams_.push_back({.member = member_of[i], .waits_for_begin = wait_for_begin});
    Stream& stream = streams_[found->second];
    samples_[samples[i]].stream = found->second;
    samples_[samples[i]].index = static_cast<int32_t>(stream.samples.size());
    stream.samples.push_back(static_cast<int32_t>(samples[i]));
  }
}

ReadMerge::Step ReadMerge::Next() {
  if (!failed_.ok()) return {.status = failed_};
  if (next_start_ < streams_.size()) {
    const Stream& stream = streams_[next_start_];
    ReadRequest part = {.run = request_.run,
                        .producer = request_.producer,
                        .layers = request_.layers,
                        .wait = request_.wait,
                        .max_message_bytes = request_.max_message_bytes,
                        .only_begun = request_.wait && !stream.waits_for_begin};
    for (const int32_t sample : stream.samples) part.samples.push_back(request_.samples[sample]);
    return {.kind = Kind::kStart, .stream = next_start_++, .member = stream.member, .request = EncodeReadRequest(part)};
  }
  for (; next_ < samples_.size(); ++next_, progress_ = {}) {
    if (std::optional<Step> step = Advance()) return *std::move(step);
  }
  return {};
}

std::optional<ReadMerge::Step> ReadMerge::Advance() {
  const bool over = progress_.told && (!progress_.open || progress_.left <= 0);
  if (over) return std::nullopt;
  const Sample& sample = samples_[next_];
  Stream& stream = streams_[sample.stream];
  Skip(stream, sample.index);
  const bool has_record =
      stream.record < stream.message.records.size() && stream.message.records[stream.record].index == sample.index;
  const bool not_found = has_record && stream.message.records[stream.record].status == SampleStatus::kNotFound;
  if (not_found && !sample.searched) return Locate();
  ReadResponse part = TakePart(stream, sample.index);
  if (not_found && !sample.reachable) return DeliverUnavailable("not there, and another one cannot be reached");
  if (!part.records.empty() || !part.pieces.empty()) return Deliver(std::move(part));
  if (!IsUsedUp(stream)) {
    // The stream has gone on to its next sample: what is missing of this one is for the checks to tell.
    if (progress_.told) return std::nullopt;
    return Fail(absl::InternalError(absl::StrCat("a server left out the record of sample ", next_)));
  }
  if (stream.end) return OnSampleWithoutAnswer(stream);
  return Step{.kind = Kind::kReceive, .stream = sample.stream, .member = stream.member};
}

std::optional<ReadMerge::Step> ReadMerge::OnSampleWithoutAnswer(const Stream& stream) {
  const absl::Status& end = *stream.end;
  if (end.ok()) {
    return Fail(absl::DataLossError(absl::StrCat("the read ended after ", next_, " of ", samples_.size(), " samples")));
  }
  const bool has_no_run = IsNoRun(end);
  if (!absl::IsUnavailable(end) && !has_no_run) return Fail(end);
  const Sample& sample = samples_[next_];
  if (!progress_.told && !sample.searched) return Locate();
  if (!has_no_run || progress_.told || !sample.reachable) return DeliverUnavailable(std::string(end.message()));
  return Deliver({.records = {{.index = static_cast<int32_t>(next_),
                               .status = SampleStatus::kNotFound,
                               .message = std::string(end.message())}}});
}

ReadMerge::Step ReadMerge::Locate() {
  searching_.clear();
  std::vector<int64_t> handles;
  for (size_t sample = next_; sample < samples_.size() && searching_.size() < kMaxSearched; ++sample) {
    if (samples_[sample].searched) continue;
    searching_.push_back(sample);
    handles.push_back(HandleOf(sample));
  }
  std::sort(handles.begin(), handles.end());
  handles.erase(std::unique(handles.begin(), handles.end()), handles.end());
  return {.kind = Kind::kLocate, .handles = std::move(handles)};
}

void ReadMerge::OnLocated(absl::Span<const std::optional<std::vector<int64_t>>> found) {
  std::unordered_map<int64_t, size_t> member_of;
  bool all_answered = true;
  for (size_t member = 0; member < found.size(); ++member) {
    if (!found[member]) {
      all_answered = false;
      continue;
    }
    for (const int64_t handle : *found[member]) {
      const auto [at, is_new] = member_of.try_emplace(handle, member);
      if (!is_new && places_.members().NaturalOwner(handle) == member) at->second = member;
    }
  }
  std::vector<size_t> moved, to, unbegun, owners;
  for (const size_t sample : std::exchange(searching_, {})) {
    samples_[sample].searched = true;
    const int64_t handle = HandleOf(sample);
    const auto at = member_of.find(handle);
    const bool is_found = at != member_of.end();
    samples_[sample].reachable = is_found || all_answered;
    if (!is_found || at->second == places_.members().NaturalOwner(handle)) {
      places_.Forget(request_.producer, handle);
    } else {
      places_.Remember(request_.producer, handle, at->second);
    }
    if (request_.wait && !request_.only_begun && !is_found && all_answered) {
      unbegun.push_back(sample);
      owners.push_back(places_.members().NaturalOwner(handle));
    }
    const Stream& stream = streams_[samples_[sample].stream];
    if (!is_found || (at->second == stream.member && !stream.end)) continue;
    moved.push_back(sample);
    to.push_back(at->second);
  }
  AddStreams(moved, to);
  AddStreams(unbegun, owners, true);
}

void ReadMerge::OnMessage(size_t stream, const ByteChain& bytes) {
  absl::StatusOr<ReadResponse> message = ParseReadResponse(bytes);
  if (!message.ok()) {
    failed_.Update(absl::InternalError(absl::StrCat("unreadable message of the server: ", message.status().message())));
    return;
  }
  Stream& at = streams_[stream];
  at.message = *std::move(message);
  at.record = at.piece = at.offset = 0;
}

void ReadMerge::OnEnd(size_t stream, const absl::Status& status) { streams_[stream].end = status; }

bool ReadMerge::IsUsedUp(const Stream& stream) {
  return stream.record == stream.message.records.size() && stream.piece == stream.message.pieces.size();
}

void ReadMerge::Skip(Stream& stream, int32_t index) {
  const ReadResponse& message = stream.message;
  while (stream.record < message.records.size() && message.records[stream.record].index < index) ++stream.record;
  for (; stream.piece < message.pieces.size() && message.pieces[stream.piece].sample_index < index; ++stream.piece) {
    stream.offset += message.pieces[stream.piece].bytes;
  }
}

ReadResponse ReadMerge::TakePart(Stream& stream, int32_t index) {
  ReadResponse& message = stream.message;
  ReadResponse part;
  for (; stream.record < message.records.size() && message.records[stream.record].index == index; ++stream.record) {
    part.records.push_back(std::move(message.records[stream.record]));
    part.records.back().index = static_cast<int32_t>(next_);
  }
  size_t bytes = 0;
  for (; stream.piece < message.pieces.size() && message.pieces[stream.piece].sample_index == index; ++stream.piece) {
    part.pieces.push_back(std::move(message.pieces[stream.piece]));
    part.pieces.back().sample_index = static_cast<int32_t>(next_);
    bytes += part.pieces.back().bytes;
  }
  part.payload = message.payload.Sub(stream.offset, bytes);
  stream.offset += bytes;
  return part;
}

ReadMerge::Step ReadMerge::Deliver(ReadResponse message) {
  for (const SampleRecord& record : message.records) {
    progress_.told = true;
    progress_.open = record.status == SampleStatus::kOk;
    if (!progress_.open) continue;
    progress_.left = TotalRows(PromisedRows(request_.samples[next_], record)) * static_cast<int64_t>(layers_);
  }
  for (const Piece& piece : message.pieces) progress_.left -= piece.rows.size() * piece.layer_count;
  return {.kind = Kind::kDeliver, .message = std::move(message)};
}

ReadMerge::Step ReadMerge::DeliverUnavailable(std::string why) {
  const std::string& member = places_.members().endpoints()[streams_[samples_[next_].stream].member];
  return Deliver({.records = {{.index = static_cast<int32_t>(next_),
                               .status = SampleStatus::kUnavailable,
                               .message = absl::StrCat("server ", member, ": ", why)}}});
}

ReadMerge::Step ReadMerge::Fail(absl::Status status) {
  failed_ = std::move(status);
  return {.status = failed_};
}

}  // namespace routing_replay::client
