// What is behind the opaque types of c_api.h. What they hold outlives them in calls under way.
#ifndef CLIENT_C_API_OBJECTS_H_
#define CLIENT_C_API_OBJECTS_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "routing_replay/c_api.h"
#include "routing_replay/client.h"

namespace routing_replay::c_api {

// A client that connects when it is first used: the file of a "file:PATH" is waited for by that call. Thread-safe.
class LazyClient {
 public:
  explicit LazyClient(ClientOptions options) : options_(std::move(options)) {}

  // Without waiting: errors of the options.
  absl::Status TryConnect();
  absl::StatusOr<std::shared_ptr<Client>> Get();

 private:
  const ClientOptions options_;
  Mutex mutex_;
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
};

// A run, and what its appenders share.
struct SharedRun {
  const std::shared_ptr<Run> run;
};

}  // namespace routing_replay::c_api

struct rr_client final {
  const std::shared_ptr<routing_replay::c_api::LazyClient> client;
};

struct rr_run final {
  const std::shared_ptr<routing_replay::c_api::SharedRun> run;
};

#endif  // CLIENT_C_API_OBJECTS_H_
