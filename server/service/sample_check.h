// Whether a sample may answer what a reader asks of it: a pure rule, apart from how the rows are sent.
#ifndef SERVER_SERVICE_SAMPLE_CHECK_H_
#define SERVER_SERVICE_SAMPLE_CHECK_H_

#include <functional>
#include <optional>
#include <string>

#include "routing_replay/wire/read_request.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay::server {

struct SampleVerdict {
  SampleStatus status = SampleStatus::kOk;
  std::string message;  // Why, when not OK.
};

// kNotReady means: may become OK (or something else) when the sample grows or is sealed; everything else is final for
// this revision. `until_seal`: a request without rows waits for the seal instead of taking what is committed. `matches`
// tells whether a token check fits; nothing if it cannot be told.
SampleVerdict CheckSample(const SampleState& state, const SampleRead& asked, bool until_seal,
                          const std::function<std::optional<bool>(const TokenCheck&)>& matches);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SAMPLE_CHECK_H_
