// Sequences of a micro-batch from an attention mask.
#include "routing_replay/trainer/sequences.h"

#include "absl/strings/str_cat.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

rrt_error* rrt_mask_sequences(const uint8_t* mask, size_t size, int64_t width, int64_t* tokens, int64_t* first_rows,
                              size_t count) {
  return Guard([&]() -> absl::Status {
    const auto sequences = SequencesFromMask({mask, size}, width, true);
    if (!sequences.ok()) return sequences.status();
    if (sequences->size() != count) {
      return Invalid(Reason::kLength, "count", absl::StrCat(count, " is not ", sequences->size(), ", the mask's rows"));
    }
    for (size_t i = 0; i < count; ++i) {
      tokens[i] = (*sequences)[i].tokens;
      first_rows[i] = (*sequences)[i].first_row;
    }
    return absl::OkStatus();
  });
}
