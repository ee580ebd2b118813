#include "routing_replay/wire/sample_state.h"

#include "routing_replay/wire/read_request.h"

namespace routing_replay {

const char* SampleStatusName(SampleStatus status) {
  switch (status) {
    case SampleStatus::kUnspecified:
      return "UNSPECIFIED";
    case SampleStatus::kOk:
      return "OK";
    case SampleStatus::kNotFound:
      return "NOT_FOUND";
    case SampleStatus::kNotRecorded:
      return "NOT_RECORDED";
    case SampleStatus::kNotReady:
      return "NOT_READY";
    case SampleStatus::kLost:
      return "LOST";
    case SampleStatus::kVersionRefused:
      return "VERSION_REFUSED";
    case SampleStatus::kLengthMismatch:
      return "LENGTH_MISMATCH";
    case SampleStatus::kTokensMismatch:
      return "TOKENS_MISMATCH";
    case SampleStatus::kOutOfRange:
      return "OUT_OF_RANGE";
    case SampleStatus::kUnavailable:
      return "UNAVAILABLE";
    case SampleStatus::kTokensNotKnown:
      return "TOKENS_NOT_KNOWN";
  }
  return "UNKNOWN";
}

}  // namespace routing_replay
