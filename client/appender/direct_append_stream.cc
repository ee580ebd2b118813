#include "client/appender/direct_append_stream.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

void DirectAppendStream::Write(AppendQueue::Message message) {
  message_ = std::move(message);
  connection_->Put(FrameType::kMessage, std::move(message_.header), message_.payload);
  broken_ = connection_->TrySend();
}

DirectAppendStream::Event DirectAppendStream::Receive() {
  auto frame = connection_->TryReceive();
  if (!frame.ok()) return {.end = frame.status()};
  if (!frame->has_value()) return {};
  if ((*frame)->type() == FrameType::kMessage) return {.message = *std::move(*frame)};
  const absl::string_view status = (*frame)->header();
  return {.end = status.empty() ? absl::OkStatus() : DecodeStreamStatus(status)};
}

DirectAppendStream::Event DirectAppendStream::Wait(int wake, Clock::Time until) {
  MutexLock lock(mutex_);
  while (true) {
    // Receive first, even if a write failed: the server may have sent something before the connection broke.
    Event event = Receive();
    if (event.message || event.end) return event;
    if (!broken_.ok()) return {.end = broken_};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::Real().Now());
    std::array<pollfd, 2> ready = {
        {{.fd = connection_->fd(), .events = 0, .revents = 0}, {.fd = wake, .events = POLLIN, .revents = 0}}};
    const bool sending = connection_->sending();
    const uint32_t to_send = sending ? connection_->send_events() : 0;
    ready[0].events = static_cast<short>(connection_->receive_events() | to_send);
    const bool is_ready = connection_->IsReady();
    const int64_t patience = is_ready ? 0 : std::clamp<int64_t>(left.count(), 0, 60'000);
    mutex_.Unlock();
    const int count = poll(ready.data(), ready.size(), static_cast<int>(patience));
    mutex_.Lock();
    if (count == 0 && !is_ready && left.count() <= 60'000) return {};
    if (sending && (is_ready || (ready[0].revents & to_send) != 0)) broken_ = connection_->TrySend();
    if ((ready[1].revents & POLLIN) != 0) {
      eventfd_t times = 0;
      eventfd_read(wake, &times);
      return {.woken = true};
    }
    if (sending && CanWrite()) return {};  // The next message can be written.
  }
}

}  // namespace routing_replay::client
