// Why a sample cannot be replayed, as errors say it.
#ifndef TRAINER_PLUGIN_FETCH_MISSING_SAMPLE_H_
#define TRAINER_PLUGIN_FETCH_MISSING_SAMPLE_H_

#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/read_request.h"

namespace routing_replay::trainer {

// The reason of an error about a sample of this status; kUnspecified where the status says all there is.
Reason MissingReason(SampleStatus status);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_MISSING_SAMPLE_H_
