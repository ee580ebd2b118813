#include "trainer_plugin/fetch/missing_sample.h"

namespace routing_replay::trainer {

Reason MissingReason(SampleStatus status) {
  switch (status) {
    case SampleStatus::kNotFound:
      return Reason::kNoSample;
    case SampleStatus::kNotRecorded:
    case SampleStatus::kNotReady:
    case SampleStatus::kOutOfRange:
      return Reason::kNotCommitted;
    case SampleStatus::kLengthMismatch:
      return Reason::kRowCount;
    case SampleStatus::kTokensMismatch:
    case SampleStatus::kTokensNotKnown:
      return Reason::kOtherTokens;
    default:
      return Reason::kUnspecified;
  }
}

}  // namespace routing_replay::trainer
