// One connection of the direct path. It carries one call at a time and implements that call's stream.
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

// State shared by all connections; must outlive them.
struct DirectHome {
  ServiceContext& context;
  Tickets& tickets;
};

// All members are used only on the thread of its loop.
class DirectConnection final : public LoopSocket, public std::enable_shared_from_this<DirectConnection> {
 public:
  // A connection must begin its first call within kFirstCall (or stall_timeout, if that is shorter), and each later
  // call within kNextCall. Otherwise it is closed.
  static constexpr std::chrono::seconds kFirstCall{20}, kNextCall{60};

  // `peer` is written as gRPC names peers. `closed` is called once, when the connection closes.
  static void Open(const DirectHome& home, DirectLoop& loop, std::unique_ptr<ByteStream> stream, std::string peer,
                   std::function<void()> closed);
  ~DirectConnection() override;

  void OnReady(uint32_t events) override;
  void OnSecond(std::chrono::steady_clock::time_point now) override;
  // Closes at once. Open operations end with an error.
  void Close() override;

 private:
  friend class DirectStream;
  enum class State {
    kIdle,       // Between calls.
    kInCall,     // A call is in progress.
    kEnding,     // The call has finished and its end frame is being sent.
    kLingering,  // Everything is sent; received bytes are discarded, so that the peer sees the end before a reset.
    kClosed,
  };

  DirectConnection(const DirectHome& home, DirectLoop& loop, std::unique_ptr<ByteStream> stream, std::string peer,
                   std::function<void()> closed);

  // These implement CallStream.
  void Arrive(CallEvent& arrived, CallEvent& gone);
  const Caller& caller() const { return caller_; }
  void Receive(int64_t most_payload, CallEvent& came);
  absl::StatusOr<ReceivedMessage> Take();
  void Send(SentMessage message, CallEvent& sent);
  void Finish(const absl::Status& status, CallEvent& ended);

  // `ended` and `sent` are reported when the frame is sent. They have begun already (CallEvent::Begin), or are null.
  void End(const absl::Status& status, CallEvent* ended);
  void SendFrame(FrameType type, SentMessage message, CallEvent* sent);

  // Checks whether the frame is allowed, before memory is allocated for it.
  absl::Status Admit(const Frame& frame);
  absl::Status AdmitMessage(const Frame& frame);
  // Receives available bytes of the next frame, if one is wanted.
  void Fill();
  void OnFrame();
  void OnBadFrame(const absl::Status& status);
  void BeginCall(const ReceivedFrame& frame);
  // Sends as much as the socket accepts now.
  void Flush();
  void OnEndSent();
  // Answers a greeting, and switches to shared memory if enough of the budget for it is left.
  void OfferMemory();
  void Discard();
  // Tells the loop which events to watch. `too_early`: events that have just arrived although they are not wanted now.
  // If bytes are among them, the socket is not watched for bytes until some are wanted; otherwise the loop would wake
  // up again and again.
  void Watch(uint32_t too_early = 0);
  bool WantsBytes() const { return state_ == State::kIdle || (state_ == State::kInCall && came_ != nullptr); }
  void Complete(CallEvent*& event, bool ok);

  const DirectHome home_;
  DirectLoop& loop_;
  ByteReservation shared_memory_;       // Reservation for the stream's shared memory.
  std::unique_ptr<ByteStream> stream_;  // Null once closed.
  const std::function<void()> closed_;
  uint64_t number_ = 0;
  uint32_t watched_ = 0;
  bool ready_ = false;  // A call of OnReady is scheduled.
  State state_ = State::kIdle;
  std::chrono::steady_clock::time_point since_;  // When the state began; in a call, when the last frame began.
  bool had_call_ = false;
  FrameReader reader_;
  FrameWriter writer_;
  std::vector<PayloadPart> sending_;  // Keeps the bytes alive that writer_ sends.
  CallEvent* sent_ = nullptr;

  // State of the call:
  Caller caller_;
  enum class Method { kGreeting, kAppend, kRead } method_ = Method::kGreeting;
  int64_t messages_ = 0;
  int64_t most_payload_ = 0;
  ByteReservation header_memory_;  // Reservation for a long header that is being received.
  absl::Status bad_frame_;
  absl::Status end_;
  CallEvent* gone_ = nullptr;
  CallEvent* came_ = nullptr;
};

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_CONNECTION_H_
