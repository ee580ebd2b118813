#include "rows.h"

absl::StatusOr<Rows> ServiceRows(const std::string&, const std::string&, const std::vector<std::string>&) {
  return absl::UnimplementedError("built without routing_replay::trainer_fetch");
}
