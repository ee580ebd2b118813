// Reading the blocks of a sample in few round trips.
#ifndef SERVER_STORE_REDIS_READ_AHEAD_H_
#define SERVER_STORE_REDIS_READ_AHEAD_H_

#include <vector>

#include "server/store/sample/row_pieces.h"
#include "server/store/store.h"

namespace routing_replay::server {

// The rows of a snapshot, whose blocks are read a few at a time: who loads one will want the next. What was read ahead
// and not asked for yet takes a few MiB per snapshot.
std::vector<StoredRows> ReadAhead(std::vector<RowPiece> pieces);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_READ_AHEAD_H_
