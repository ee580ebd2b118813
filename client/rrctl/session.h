// What a command does with the server and with the process's streams and signals.
#ifndef CLIENT_RRCTL_SESSION_H_
#define CLIENT_RRCTL_SESSION_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "client/rrctl/failure.h"
#include "client/rrctl/interrupt.h"
#include "client/rrctl/output.h"
#include "client/rrctl/settings.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

using Query = std::function<absl::StatusOr<Document>(Client&)>;

// One per process, and before it starts a thread: a session that watches or measures holds its signals.
class Session {
 public:
  explicit Session(const Settings& settings);

  // Shows the answer, again and again where the settings say so.
  absl::Status Show(Layout layout, const Query& query);
  // Of a server everything, of several a line each.
  absl::Status ShowStatus();
  absl::Status Get();
  absl::Status Put();
  // Asks before it drops a run, where standard input is a terminal: ABORTED if the answer is not yes.
  absl::Status Remove();
  absl::Status Bench();
  absl::Status Export();
  absl::Status Import();
  // DATA_LOSS behind the answer where something is damaged.
  absl::Status Verify();
  // A difference is no error, but the verdict.
  absl::Status Diff();
  // A check that failed is no error, but the verdict.
  absl::Status Doctor();
  // Writes the page, and says where it is.
  absl::Status Report();
  // The description is on standard input.
  absl::Status Diagnose();
  // These three need no server. The plan's description is on standard input.
  absl::Status Plan();
  absl::Status CompletionScript();
  absl::Status MakeToken();

  // The process's exit code after a command that ended so.
  ExitCode CodeFor(const absl::Status& status) const { return status.ok() ? verdict_ : ExitCodeFor(status, failed_); }

  // Whether standard output has taken what was written to it.
  bool OutputIsTaken() const { return output_.taken(); }

 private:
  ClientOptions Options() const;
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
  // To the files that the settings name.
  absl::Status WriteFigures(const Document& result) const;
  absl::Status Explain(absl::string_view description);
  // Shows how far it is meanwhile, and the answer.
  absl::StatusOr<Document> Transfer(absl::StatusOr<Document> (*transfer)(Client&, const TransferOptions&,
                                                                         const ShowProgress&));
  absl::StatusOr<Document> VerifyHere();
  absl::Status WatchQuery(Layout layout, const Query& query);

  const Settings& settings_;
  Output output_;
  ExitCode verdict_ = kExitOk;     // Of a command that said all it had to say on standard output.
  ExitCode failed_ = kExitFailed;  // Of one that failed.
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_SESSION_H_
