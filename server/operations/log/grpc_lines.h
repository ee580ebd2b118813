// What gRPC says of itself, in the form of the event log.
#ifndef SERVER_OPERATIONS_LOG_GRPC_LINES_H_
#define SERVER_OPERATIONS_LOG_GRPC_LINES_H_

namespace routing_replay::server {

// From here on, for the whole process: gRPC's lines become warnings, the event "grpc". Of one place in its source one
// comes in 10 s, and the next one has "held_back", the number in between: whoever knocks at a port causes some.
void LogGrpcLines();

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_LOG_GRPC_LINES_H_
