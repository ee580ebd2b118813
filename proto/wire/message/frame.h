// How messages lie on a connection of the direct path (FORMAT.md, "The direct path").
#ifndef PROTO_WIRE_MESSAGE_FRAME_H_
#define PROTO_WIRE_MESSAGE_FRAME_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "proto/wire/message/byte_chain.h"
#include "proto/wire/message/byte_stream.h"

namespace routing_replay {
inline namespace wire {

inline constexpr size_t kFrameBytes = 16;
inline constexpr size_t kMaxFrameParts = 4096;

enum class FrameType : uint8_t {
  kCall = 1,     // A client begins a call; the header is a DirectCall.
  kMessage = 2,  // Of the call, either way. Header and payload together are the message.
  kEnd = 3,      // The server ends it; the header is a routing_replay.v1.Status, empty for OK.
};

// What stands before the bytes of a frame.
struct Frame {
  FrameType type = FrameType::kMessage;
  uint16_t parts = 0;  // Of the payload; 0: it is one.
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
};

// Frame and sizes of its parts, to be sent before header and payload. `parts`: none, or sizes above 0, at most
// kMaxFrameParts, whose sum is `payload_bytes`.
std::string EncodeFrame(FrameType type, size_t header_bytes, size_t payload_bytes,
                        absl::Span<const uint32_t> parts = {});

// A frame that has come as a whole. Move-only.
class ReceivedFrame {
 public:
  FrameType type() const { return type_; }
  absl::string_view header() const;
  // Header and payload, in one chain.
  ByteChain chain() const;

  Buffer table;               // Sizes of the parts, and the header.
  std::vector<Buffer> parts;  // Of the payload; of one that has no parts, the only one may be longer than it.

 private:
  friend class FrameReader;
  FrameType type_ = FrameType::kMessage;
  size_t header_at_ = 0;
  size_t payload_bytes_ = 0;
};

// Takes frames apart as they come: says where the next bytes go, and is told how many came. Not thread-safe.
class FrameReader {
 public:
  // `admit` is asked for each frame before anything of it is allocated; what it rejects with, Advance returns.
  explicit FrameReader(std::function<absl::Status(const Frame&)> admit) : admit_(std::move(admit)) {}

  // Whether nothing of the next frame has come.
  bool at_start() const { return stage_ == Stage::kFrame && filled_ == 0; }
  // Where the next bytes go, one after the other; at least one, unless done().
  absl::Span<const iovec> Space();
  // The first `bytes` of Space() have come. INVALID_ARGUMENT if that is no frame. After an error nothing more is read.
  absl::Status Advance(size_t bytes);
  bool done() const { return stage_ == Stage::kDone; }
  // Of a frame that is done; the next one begins.
  ReceivedFrame Take();
  // Memory of a frame that is done with is used for a payload without parts that comes later: fresh memory is dear.
  void Recycle(ReceivedFrame frame);

 private:
  enum class Stage { kFrame, kTable, kPayload, kDone };

  absl::Status EndStage();
  absl::Status MakeParts();

  const std::function<absl::Status(const Frame&)> admit_;
  Stage stage_ = Stage::kFrame;
  std::array<uint8_t, kFrameBytes> start_;
  Frame frame_;
  size_t filled_ = 0;  // Of start_ or the table.
  ReceivedFrame received_;
  Buffer spare_;
  std::vector<iovec> space_;
  size_t next_ = 0;  // Of space_, while the payload comes.
};

// Sends frames, each in as many calls as it takes. Not thread-safe.
class FrameWriter {
 public:
  // Sets the next frame; requires done(). The payload must stay valid until done() again. `in_parts`: the frame lists
  // the sizes of the payload's parts, if they fit, and the receiver keeps each part separately.
  void Put(FrameType type, std::string header, absl::Span<const absl::Span<const uint8_t>> payload, bool in_parts);
  bool done() const { return next_ == left_.size(); }
  // Until all is sent, or the stream takes no more for now. Errors of the stream.
  absl::Status SendTo(ByteStream& stream);

 private:
  std::string frame_, header_;
  std::vector<iovec> left_;
  size_t next_ = 0;  // Of left_.
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_FRAME_H_
