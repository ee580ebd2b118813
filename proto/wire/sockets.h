// Socket options of the direct path, for server and client.
#ifndef PROTO_WIRE_SOCKETS_H_
#define PROTO_WIRE_SOCKETS_H_

namespace routing_replay {
inline namespace wire {

// Sets the options for a TCP connection of the direct path. Bytes are sent without delay (TCP_NODELAY). A peer that
// disappears without closing is noticed within 40 s. If both ends are on one machine, a congestion control that suits
// loopback replaces the system's default, which may be made for long distances.
void PrepareTcp(int fd);
// The same for a Unix socket: enlarges its buffer, which by default holds only a tenth of a message.
void PrepareUnix(int fd);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_SOCKETS_H_
