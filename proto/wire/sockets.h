// Sockets of the direct path, at both ends.
#ifndef PROTO_WIRE_SOCKETS_H_
#define PROTO_WIRE_SOCKETS_H_

namespace routing_replay {
inline namespace wire {

// For messages of some MiB with nothing between them: sent at once; who waits for a peer that is gone without a word
// hears of it within 40 s; and between two ends on one machine the system's congestion control, which may be made for
// long ways, is not in the way.
void PrepareTcp(int fd);
// The same of a Unix socket, which has room for a tenth of a message by itself.
void PrepareUnix(int fd);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_SOCKETS_H_
