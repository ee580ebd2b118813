#include "client/reader/reader.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cancellation.h"
#include "client/log.h"
#include "client/reader/read_rows.h"
#include "client/reader/read_stream.h"
#include "client/reader/resumable_read.h"
#include "client/retry.h"
#include "proto/wire/message/read_message.h"

namespace routing_replay::client {

namespace {

// What became of asking one server for what is missing.
struct Answer {
  absl::Status status;
  bool broke = false;    // The server went away, or refused a token that was replaced meanwhile.
  bool brought = false;  // Some of it came.
};

Answer AskOnce(Link& link, ResumableRead& read, Clock::Time deadline) {
  const auto connection = link.Connect();
  if (!connection.ok()) return {.status = connection.status()};
  ReadStream stream(*connection, EncodeReadRequest(*read.part()), deadline);
  for (Answer answer;; answer.brought = true) {
    const auto bytes = stream.Next();
    answer.status = link.OnEnd(*connection, bytes.status());
    answer.broke = absl::IsUnavailable(answer.status);
    const bool more = bytes.ok() && bytes->has_value();
    if (bytes.ok()) answer.status = more ? read.OnBytes((*bytes)->chain()) : read.OnEnd();
    if (!more || !answer.status.ok()) return answer;
  }
}

}  // namespace

absl::Status ReadInto(Link& link, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                      Clock::Time deadline, std::chrono::milliseconds patience) {
  auto read = ResumableRead::Create(geometry, request, sink);
  if (!read.ok()) return read.status();
  const auto from_now = [&] { return RetrySchedule(std::min(deadline, DeadlineAfter(Clock::Real().Now(), patience))); };
  RetrySchedule schedule = from_now();
  bool told = false;
  while ((*read)->part() != nullptr) {
    const Answer answer = AskOnce(link, **read, deadline);
    if (answer.status.ok()) continue;
    if (!answer.broke) return answer.status;
    // Cancelled by its caller: no server is in trouble.
    if (absl::Status over = CheckCall(); !over.ok()) return over;
    if (answer.brought) schedule = from_now();
    const auto wait = schedule.WaitAfter(answer.status, Clock::Real().Now());
    if (!wait) return answer.status;
    if (!std::exchange(told, true)) Log(absl::StrCat("a read waits for its server: ", answer.status.message()));
    (*read)->OnBreak();
    SleepInCall(*wait);
    if (absl::Status over = CheckCall(); !over.ok()) return over;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SampleRows>> ReadDecoded(Link& link, const Geometry& geometry, const ReadRequest& request,
                                                    Clock::Time deadline) {
  auto ordinals = LayerOrdinals(geometry, request.layers);
  if (!ordinals.ok()) return ordinals.status();
  RowCollector rows(geometry, *std::move(ordinals));
  if (absl::Status status = ReadInto(link, geometry, request, rows, deadline); !status.ok()) return status;
  return rows.Take();
}

}  // namespace routing_replay::client
