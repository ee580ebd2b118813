// One connection of the direct path: one call at a time, of which it is the stream.
#ifndef SERVER_DIRECT_DIRECT_CONNECTION_H_
#define SERVER_DIRECT_DIRECT_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/message/frame.h"
#include "server/direct/direct_loop.h"
#include "server/security/tickets.h"

namespace routing_replay::server {

// What connections share; outlives them.
struct DirectHome {
  ServiceContext& context;
  Tickets& tickets;
};

// Used on its loop's thread.
class DirectConnection final : public LoopSocket, public std::enable_shared_from_this<DirectConnection> {
 public:
  // A connection begins its first call within this time, or a shorter stall_timeout; and each other one within the
  // second.
  static constexpr std::chrono::seconds kFirstCall{20}, kNextCall{60};

  // `peer`: as gRPC names it. `closed` is called once.
  static void Open(const DirectHome& home, DirectLoop& loop, std::unique_ptr<ByteStream> stream, std::string peer,
                   std::function<void()> closed);
  ~DirectConnection() override;

  void OnReady(uint32_t events) override;
  void OnSecond(std::chrono::steady_clock::time_point now) override;
  // At once; what is open ends.
  void Close() override;

 private:
  friend class DirectStream;
  enum class State {
    kIdle,       // Between calls.
    kInCall,     // Until the call finishes.
    kEnding,     // Its end is being sent.
    kLingering,  // Nothing more is said, and what comes is thrown away: the peer is to see the end before a reset.
    kClosed,
  };

  DirectConnection(const DirectHome& home, DirectLoop& loop, std::unique_ptr<ByteStream> stream, std::string peer,
                   std::function<void()> closed);

  // As those of CallStream.
  void Arrive(CallEvent& arrived, CallEvent& gone);
  const Caller& caller() const { return caller_; }
  void Receive(int64_t most_payload, CallEvent& came);
  absl::StatusOr<ReceivedMessage> Take();
  void Send(SentMessage message, CallEvent& sent);
  void Finish(const absl::Status& status, CallEvent& ended);

  // `ended`, `sent`: begun, or null.
  void End(const absl::Status& status, CallEvent* ended);
  void SendFrame(FrameType type, SentMessage message, CallEvent* sent);

  // Whether the frame may come: before anything of it is allocated.
  absl::Status Admit(const Frame& frame);
  absl::Status AdmitMessage(const Frame& frame);
  // Takes what has come of the next frame, if one is wanted.
  void Fill();
  void OnFrame();
  void OnBadFrame(const absl::Status& status);
  void BeginCall(const ReceivedFrame& frame);
  // Sends what can be sent now.
  void Flush();
  void OnEndSent();
  // Answers a greeting; goes on over shared memory, where there is some left.
  void OfferMemory();
  void Discard();
  // `too_early`: events that came while none was wanted.
  void Watch(uint32_t too_early = 0);
  bool WantsBytes() const { return state_ == State::kIdle || (state_ == State::kInCall && came_ != nullptr); }
  void Complete(CallEvent*& event, bool ok);

  const DirectHome home_;
  DirectLoop& loop_;
  ByteReservation shared_memory_;       // Of the stream.
  std::unique_ptr<ByteStream> stream_;  // Null: closed.
  const std::function<void()> closed_;
  uint64_t number_ = 0;
  uint32_t watched_ = 0;
  bool ready_ = false;  // OnReady is called soon.
  State state_ = State::kIdle;
  std::chrono::steady_clock::time_point since_;  // Of the state.
  bool had_call_ = false;
  FrameReader reader_;
  FrameWriter writer_;
  std::vector<PayloadPart> sending_;  // Of the writer.
  CallEvent* sent_ = nullptr;

  // Of the call:
  Caller caller_;
  enum class Method { kGreeting, kAppend, kRead } method_ = Method::kGreeting;
  int64_t messages_ = 0;
  int64_t most_payload_ = 0;
  ByteReservation header_memory_;  // Of a long header that comes.
  absl::Status bad_frame_;
  absl::Status end_;
  CallEvent* gone_ = nullptr;
  CallEvent* came_ = nullptr;
};

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_CONNECTION_H_
