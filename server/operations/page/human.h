// Figures as people read them on the page. In a namespace of their own: rrctl has its own way to write them.
#ifndef SERVER_OPERATIONS_PAGE_HUMAN_H_
#define SERVER_OPERATIONS_PAGE_HUMAN_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace routing_replay::page {

std::string HumanCount(int64_t count);     // 1,234,567
std::string HumanBytes(double bytes);      // 1.4 GiB
std::string HumanRate(double per_second);  // 0, 0.25, 13.4, 2,310
// The two largest units: 3 d 4 h, 12 min 5 s, 0 s.
std::string HumanDuration(std::chrono::milliseconds duration);

}  // namespace routing_replay::page

#endif  // SERVER_OPERATIONS_PAGE_HUMAN_H_
