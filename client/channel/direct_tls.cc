#include "client/channel/direct_tls.h"

#include "proto/wire/status_macros.h"

namespace routing_replay::client {

absl::StatusOr<DirectTls::Ends> DirectTls::Look() {
  RR_ASSIGN_OR_RETURN(auto keys, security_->KeysFor(judged_));
  MutexLock lock(mutex_);
  if (context_ == nullptr || keys != keys_) {
    RR_ASSIGN_OR_RETURN(context_, ClientTlsContext(keys.certificate, keys.key, keys.root_certificates));
    keys_ = std::move(keys);
  }
  return Ends{context_, keys_.server_name.empty() ? host_ : keys_.server_name};
}

}  // namespace routing_replay::client
