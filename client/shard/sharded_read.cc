#include "client/shard/sharded_read.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/reader/read_checker.h"
#include "client/reader/read_stream.h"
#include "client/shard/read_merge.h"

namespace routing_replay {
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

  void Receive(const ReadMerge::Step& step, ReadMerge& merge) {
    Open& stream = streams_[step.stream];
    if (!stream.connection.ok()) return merge.OnEnd(step.stream, stream.connection.status());
    auto bytes = stream.call->Next();
    if (bytes.ok() && bytes->has_value()) {
      stream.bytes = **std::move(bytes);
      return merge.OnMessage(step.stream, stream.bytes->chain());
    }
    members_[step.member].link()->OnEnd(*stream.connection, bytes.status()).IgnoreError();
    stream.call.reset();
    merge.OnEnd(step.stream, bytes.status());
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

}  // namespace

absl::Status ReadSharded(const MemberSet& members, Places& places, const Geometry& geometry, const ReadRequest& request,
                         ReadSink& sink, Clock::Time deadline) {
  auto checker = ReadChecker::Create(geometry, request, sink);
  if (!checker.ok()) return checker.status();
  const size_t layers = request.layers.empty() ? geometry.num_moe_layers() : request.layers.size();
  ReadMerge merge(request, layers, places);
  Streams streams(members, deadline);
  while (true) {
    ReadMerge::Step step = merge.Next();
    switch (step.kind) {
      case ReadMerge::Kind::kStart:
        streams.Start(std::move(step));
        break;
      case ReadMerge::Kind::kReceive:
        streams.Receive(step, merge);
        break;
      case ReadMerge::Kind::kLocate:
        merge.OnLocated(members.Locate(request.run, request.producer, step.handles, deadline));
        break;
      case ReadMerge::Kind::kDeliver:
        if (absl::Status status = (*checker)->OnMessage(step.message); !status.ok()) return status;
        break;
      case ReadMerge::Kind::kDone:
        return step.status.ok() ? (*checker)->OnEnd() : step.status;
    }
  }
}

}  // namespace routing_replay
