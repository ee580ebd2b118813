// A read of several servers as one: what to ask whom, and their answers merged in the order asked. Without I/O.
#ifndef CLIENT_SHARD_READ_MERGE_H_
#define CLIENT_SHARD_READ_MERGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/shard/places.h"
#include "proto/wire/message/read_message.h"

namespace routing_replay::client {

// Splits a read by member and gives messages as one server with all the samples would. Each member's answer is one
// stream, received ahead by whoever does the I/O; the merge holds one message of each, whose bytes stay with the
// caller.
//
// A sample that its place does not have, or whose place cannot be reached, is asked for at all members at once,
// together with every later one of the read whose place is not proven; it is then read where it was found. Found
// nowhere it is waited for where it would be begun, if the read waits; else it is NOT_FOUND, or UNAVAILABLE if a member
// did not answer. Not thread-safe.
class ReadMerge {
 public:
  enum class Kind {
    kStart,    // Begin `stream`: a Read of `request` at `member`.
    kReceive,  // Give OnMessage or OnEnd of `stream`. The bytes of its message before are not needed any more.
    kLocate,   // Ask every member for `handles`, then OnLocated.
    kDeliver,  // `message`, the next one of the merged read. Its payload points into a message that was received.
    kDone,     // The end, or the error that it failed with: every later step is this one.
  };
  struct Step {
    Kind kind = Kind::kDone;
    size_t stream = 0;
    size_t member = 0;
    std::string request;
    std::vector<int64_t> handles;
    ReadResponse message;
    absl::Status status;
  };

  // `layers`: how many the read asks for. `places` must outlive the merge, and learns from it.
  ReadMerge(ReadRequest request, size_t layers, Places& places);

  Step Next();
  // `bytes` must live until the next kReceive of the stream.
  void OnMessage(size_t stream, const ByteChain& bytes);
  void OnEnd(size_t stream, const absl::Status& status);
  // Of each member the handles that it has, or nothing where it did not answer.
  void OnLocated(absl::Span<const std::optional<std::vector<int64_t>>> found);
  Producer producer() const { return request_.producer; }
  const std::string& run() const { return request_.run; }

 private:
  struct Stream {
    size_t member = 0;
    std::vector<int32_t> samples;  // Positions in the request, ascending; a position in this is an index of the stream.
    bool waits_for_begin = false;
    std::optional<absl::Status> end;
    ReadResponse message;  // What has come and was not delivered, from here on:
    size_t record = 0;
    size_t piece = 0;
    size_t offset = 0;  // Of the payload.
  };
  struct Sample {
    size_t stream = 0;
    int32_t index = 0;  // Of the stream.
    bool searched = false;
    bool reachable = true;  // Of one that was searched for and not found: every member answered.
  };
  // How far the sample at next_ is.
  struct Progress {
    bool told = false;  // Its record was delivered …
    bool open = false;  // … and promised pieces, of which
    int64_t left = 0;   // so many rows x layers did not come yet.
  };

  int64_t HandleOf(size_t sample) const;
  void AddStreams(absl::Span<const size_t> samples, absl::Span<const size_t> member_of, bool wait_for_begin = false);
  // The next step of the sample at next_; nothing if it is over.
  std::optional<Step> Advance();
  std::optional<Step> OnSampleWithoutAnswer(const Stream& stream);
  Step Locate();
  // Everything that the present message of the stream says of the sample with this index of it; empty if nothing.
  ReadResponse TakePart(Stream& stream, int32_t index);
  static void Skip(Stream& stream, int32_t index);
  static bool IsUsedUp(const Stream& stream);
  Step Deliver(ReadResponse message);
  Step DeliverUnavailable(std::string why);
  Step Fail(absl::Status status);

  const ReadRequest request_;
  const size_t layers_;
  Places& places_;
  std::vector<Stream> streams_;
  size_t next_start_ = 0;
  std::vector<Sample> samples_;
  size_t next_ = 0;
  Progress progress_;
  std::vector<size_t> searching_;  // Of the Locate in progress.
  absl::Status failed_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_READ_MERGE_H_
