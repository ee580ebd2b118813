// Whether an address stays on this machine: what plaintext and bearer tokens are allowed for.
#ifndef PROTO_WIRE_LOCAL_ADDRESS_H_
#define PROTO_WIRE_LOCAL_ADDRESS_H_

#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

// True for "unix:PATH", and for "host:port" or "[v6]:port" with a loopback address (127.0.0.0/8, ::1) or the name
// "localhost". Other names count as elsewhere: nothing is resolved.
bool IsLocalAddress(absl::string_view address);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_LOCAL_ADDRESS_H_
