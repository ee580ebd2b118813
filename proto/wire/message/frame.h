// Frames: how messages are laid out on a connection of the direct path (FORMAT.md, "The direct path").
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
  kMessage = 2,  // In either direction. The message is the frame's header followed by the payload.
  kEnd = 3,      // The server ends the call; the header is a routing_replay.v1.Status, empty for OK.
};

// The fixed-size start of a frame.
struct Frame {
  FrameType type = FrameType::kMessage;
  uint16_t parts = 0;  // Number of parts of the payload; 0: the payload is not divided.
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
};

// Encodes the start of a frame and the sizes of its parts; send header and payload after it. `parts` is empty, or has
// at most kMaxFrameParts sizes above 0 whose sum is `payload_bytes`.
std::string EncodeFrame(FrameType type, size_t header_bytes, size_t payload_bytes,
                        absl::Span<const uint32_t> parts = {});

// A completely received frame. Move-only.
class ReceivedFrame {
 public:
  FrameType type() const { return type_; }
  absl::string_view header() const;
  // Header and payload in one chain.
  ByteChain chain() const;

  Buffer table;  // The sizes of the parts, then the header.
  // The payload. If it is not divided, there is one buffer, which may be longer than the payload.
  std::vector<Buffer> parts;

 private:
  friend class FrameReader;
  FrameType type_ = FrameType::kMessage;
  size_t header_at_ = 0;
  size_t payload_bytes_ = 0;
};

// Parses incoming frames: Space() says where to put the next bytes, and Advance() says how many were received. Not
// thread-safe.
class FrameReader {
 public:
  // `admit` is called for each frame before any memory is allocated for it. If it returns an error, Advance returns
  // that error.
  explicit FrameReader(std::function<absl::Status(const Frame&)> admit) : admit_(std::move(admit)) {}

  // True if no byte of the next frame has been received.
  bool at_start() const { return stage_ == Stage::kFrame && filled_ == 0; }
  // The memory into which the next bytes must be received, in order. At least one byte long unless done().
  absl::Span<const iovec> Space();
  // Call it after `bytes` bytes were received into Space(). INVALID_ARGUMENT if they are not a valid frame. After an
  // error the reader must not be used again.
  absl::Status Advance(size_t bytes);
  bool done() const { return stage_ == Stage::kDone; }
  // Returns the finished frame and starts the next one. Requires done().
  ReceivedFrame Take();
  // Takes back the memory of a frame that the caller has finished with, and reuses it for a later payload without
  // parts: fresh memory is expensive.
  void Recycle(ReceivedFrame frame);

 private:
  enum class Stage { kFrame, kTable, kPayload, kDone };

  absl::Status EndStage();
  absl::Status MakeParts();

  const std::function<absl::Status(const Frame&)> admit_;
  Stage stage_ = Stage::kFrame;
  std::array<uint8_t, kFrameBytes> start_;
  Frame frame_;
  size_t filled_ = 0;  // Bytes received into start_ or the table.
  ReceivedFrame received_;
  Buffer spare_;
  std::vector<iovec> space_;
  size_t next_ = 0;  // Index in space_ of the first piece that is not filled, while the payload is received.
};

// Sends frames; one frame may take several calls of SendTo. Not thread-safe.
class FrameWriter {
 public:
  // Sets the next frame. Its payload must stay valid until done(). The previous frame must be done(), or not begun: if
  // SendTo was not called for it, it is copied and sent together with this one. `in_parts`: tells the receiver the size
  // of each part, so that it keeps each in its own buffer; ignored above kMaxFrameParts parts and above 4 GiB.
  void Put(FrameType type, std::string header, absl::Span<const absl::Span<const uint8_t>> payload, bool in_parts);
  bool done() const { return next_ == left_.size(); }
  // Sends until the frame is sent or the stream accepts no more bytes for now. Returns errors of the stream.
  absl::Status SendTo(ByteStream& stream);

 private:
  std::string frame_, header_;
  std::vector<iovec> left_;
  size_t next_ = 0;  // Index in left_ of the first piece that is not sent completely.
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_FRAME_H_
