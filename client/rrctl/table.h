// Output of rrctl: a table for a person, JSON for a program.
#ifndef CLIENT_RRCTL_TABLE_H_
#define CLIENT_RRCTL_TABLE_H_

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace routing_replay {

// Rows are JSON objects with the same keys; nested values print as JSON text in a table.
void PrintTable(const std::vector<nlohmann::ordered_json>& rows, std::ostream& out);

// "12.3 MiB"
std::string HumanBytes(int64_t bytes);

}  // namespace routing_replay

#endif  // CLIENT_RRCTL_TABLE_H_
