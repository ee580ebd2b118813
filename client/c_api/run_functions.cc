// Runs: what they are, the states of their samples, and single appends.
#include <string>
#include <vector>

#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

namespace {

CallEnd Give(const absl::StatusOr<std::vector<SampleState>>& states, const rr_sample_states** out) {
  if (!states.ok()) return states.status();
  *out = NewStates(*states);
  return {};
}

CallEnd Give(const absl::StatusOr<SampleState>& state, const rr_sample_states** out) {
  if (!state.ok()) return state.status();
  *out = NewStates({&*state, 1});
  return {};
}

CallEnd Give(const absl::StatusOr<ReleaseOutcome>& outcome, rr_released* out) {
  if (!outcome.ok()) return outcome.status();
  *out = Released(*outcome);
  return {};
}

CallEnd Give(const absl::StatusOr<AppendOutcome>& outcome, const std::string& sample, const rr_outcomes** out) {
  if (!outcome.ok()) return outcome.status();
  Result<rr_outcomes> result;
  const auto list = result.Array<rr_outcome>(1);
  Fill(*outcome, result, list[0]);
  list[0].sample = result.Text(sample);
  *result = {list.data(), list.size()};
  *out = result.Release();
  return {};
}

}  // namespace

void rr_run_free(rr_run* run) {
  Always([&] { delete run; });
}

rr_error* rr_run_describe(const rr_run* run, const rr_run_info** info) {
  return Guard([&]() -> CallEnd {
    const Run& described = *run->run->run;
    Result<rr_run_info> result;
    result->name = result.Text(described.name());
    Fill(described.geometry(), result, result->geometry);
    Fill(described.settings(), result, result->settings);
    result->dropped = Released(described.dropped());
    *info = result.Release();
    return {};
  });
}

rr_error* rr_run_stat(rr_run* run, const rr_text* samples, size_t count, int32_t producer, const rr_call* call,
                      const rr_sample_states** states) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call, [run = run->run, names = StringsFrom(samples, count), whose = *whose, states] {
      return Give(run->run->StatMany(names, whose), states);
    });
  });
}

rr_error* rr_run_list(rr_run* run, const rr_range* groups, int32_t producer, const rr_call* call,
                      const rr_sample_states** states) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call, [run = run->run, groups = GroupsFrom(groups), whose = *whose, states] {
      return Give(run->run->List(groups, whose), states);
    });
  });
}

rr_error* rr_run_seal(rr_run* run, rr_text sample, int32_t producer, int64_t num_tokens, int64_t revision,
                      const rr_call* call, const rr_sample_states** state) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call, [run = run->run, name = String(sample), whose = *whose, num_tokens, revision, state] {
      return Give(run->run->Seal(name, whose, num_tokens, revision), state);
    });
  });
}

rr_error* rr_run_truncate(rr_run* run, rr_text sample, int32_t producer, int64_t rows, rr_integer expected_revision,
                          const rr_call* call, const rr_sample_states** state) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call,
                   [run = run->run, name = String(sample), whose = *whose, rows, expected = Optional(expected_revision),
                    state] { return Give(run->run->Truncate(name, whose, rows, expected), state); });
  });
}

rr_error* rr_run_release(rr_run* run, const rr_text* samples, size_t count, const int64_t* handles, size_t handle_count,
                         const rr_range* groups, int32_t producer, const rr_call* call, rr_released* released) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerOrBoth(producer);
    if (!whose.ok()) return whose.status();
    ReleaseOptions options{.producer = *whose, .handles = {handles, handles + handle_count}};
    const auto work = [run = run->run, names = StringsFrom(samples, count), groups = GroupsFrom(groups),
                       options = std::move(options), released] {
      if (groups) return Give(run->run->ReleaseGroups(groups->first, groups->second, options), released);
      return Give(run->run->Release(names, options), released);
    };
    return Perform(call, Once(work));
  });
}

rr_error* rr_run_drop(rr_run* run, const rr_call* call, rr_released* released) {
  return Guard([&] { return Perform(call, [run = run->run, released] { return Give(run->run->Drop(), released); }); });
}

rr_error* rr_run_put(rr_run* run, const rr_append* append, const rr_call* call, const rr_outcomes** outcome) {
  return Guard([&]() -> CallEnd {
    const auto tokens = std::make_shared<std::vector<uint32_t>>();
    auto given = AppendFrom(*append, *tokens);
    if (!given.ok()) return given.status();
    const auto work = [run = run->run, given = *std::move(given), tokens, outcome] {
      const AppendOptions& options = given.options;
      if (!given.tensor) {
        return Give(run->run->PutUnrecorded(options, TotalRows(options.unrecorded)), options.sample, outcome);
      }
      return Give(run->run->Put(options, *given.tensor, given.payload), options.sample, outcome);
    };
    return Perform(call, Once(work));
  });
}
