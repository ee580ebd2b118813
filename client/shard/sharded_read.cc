#include "client/shard/sharded_read.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/cancellation.h"
#include "client/reader/read_stream.h"
#include "client/reader/resumable_read.h"
#include "client/retry.h"
#include "client/shard/read_merge.h"

namespace routing_replay::client {
namespace {

// The streams of one read.
class Streams {
 public:
  Streams(const MemberSet& members, Clock::Time deadline) : members_(members), deadline_(deadline) {}

  void Start(ReadMerge::Step step) {
    Member& member = members_[step.member];
    streams_.resize(std::max(streams_.size(), step.stream + 1));
    Open& stream = streams_[step.stream];
    stream.connection = member.link()->Connect();
    if (!stream.connection.ok()) return;
    stream.call = std::make_unique<ReadStream>(*stream.connection, std::move(step.request), deadline_);
  }

  // UNAVAILABLE where the member refused a token that was replaced meanwhile: then the merge is told nothing.
  absl::Status Receive(const ReadMerge::Step& step, ReadMerge& merge) {
    Open& stream = streams_[step.stream];
    if (!stream.connection.ok()) {
      merge.OnEnd(step.stream, stream.connection.status());
      return absl::OkStatus();
    }
    auto bytes = stream.call->Next();
    if (bytes.ok() && bytes->has_value()) {
      stream.bytes = **std::move(bytes);
      merge.OnMessage(step.stream, stream.bytes->chain());
      return absl::OkStatus();
    }
    const absl::Status judged = members_[step.member].link()->OnEnd(*stream.connection, bytes.status());
    stream.call.reset();
    if (absl::IsUnauthenticated(bytes.status()) && absl::IsUnavailable(judged)) return judged;
    merge.OnEnd(step.stream, bytes.status());
    return absl::OkStatus();
  }

 private:
  struct Open {
    absl::StatusOr<ServerConnection> connection;
    std::unique_ptr<ReadStream> call;
    std::optional<ReceivedBytes> bytes;  // Of its present message.
  };

  const MemberSet& members_;
  const Clock::Time deadline_;
  std::vector<Open> streams_;
};

// Asks for what is missing. `refused`: a member refused a token that was replaced meanwhile.
absl::Status ReadOnce(const MemberSet& members, Places& places, size_t layers, ResumableRead& read,
                      Clock::Time deadline, bool& refused) {
  const ReadRequest& request = *read.part();
  ReadMerge merge(request, layers, places);
  Streams streams(members, deadline);
  while (true) {
    ReadMerge::Step step = merge.Next();
    absl::Status status;
    switch (step.kind) {
      case ReadMerge::Kind::kStart:
        streams.Start(std::move(step));
        break;
      case ReadMerge::Kind::kReceive:
        status = streams.Receive(step, merge);
        refused = !status.ok();
        break;
      case ReadMerge::Kind::kLocate:
        merge.OnLocated(members.Locate(request.run, request.producer, step.handles, deadline));
        break;
      case ReadMerge::Kind::kDeliver:
        status = read.OnMessage(step.message);
        break;
      case ReadMerge::Kind::kDone:
        return step.status.ok() ? read.OnEnd() : step.status;
    }
    if (!status.ok()) return status;
  }
}

}  // namespace

absl::Status ReadSharded(const MemberSet& members, Places& places, const Geometry& geometry, const ReadRequest& request,
                         ReadSink& sink, Clock::Time deadline) {
  auto read = ResumableRead::Create(geometry, request, sink);
  if (!read.ok()) return read.status();
  RetrySchedule schedule(deadline);
  while (const ReadRequest* part = (*read)->part()) {
    const size_t layers = part->layers.empty() ? geometry.num_moe_layers() : part->layers.size();
    bool refused = false;
    const absl::Status status = ReadOnce(members, places, layers, **read, deadline, refused);
    if (status.ok()) continue;
    const auto wait = refused ? schedule.WaitAfter(status, Clock::Real().Now()) : std::nullopt;
    if (!wait) return status;
    (*read)->OnBreak();
    SleepInCall(*wait);
    if (absl::Status over = CheckCall(); !over.ok()) return over;
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::client
