// What is in force for a run ⇄ the record of run_record.proto. Pure; thread-safe.
#ifndef SERVER_STORE_RECORDS_RUN_RECORD_H_
#define SERVER_STORE_RECORDS_RUN_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/store.h"

namespace routing_replay::server {

std::string EncodeRun(const RunInfo& run);
// DATA_LOSS if the record is damaged.
absl::StatusOr<RunInfo> DecodeRun(absl::string_view record);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_RECORDS_RUN_RECORD_H_
