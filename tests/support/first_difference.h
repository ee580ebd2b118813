// Compares long byte strings and prints the first difference in one line.
#ifndef TESTS_SUPPORT_FIRST_DIFFERENCE_H_
#define TESTS_SUPPORT_FIRST_DIFFERENCE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace routing_replay::testing {

// For ASSERT_EQ(FirstDifference(bytes, expected), ""): the first difference, or "".
inline std::string FirstDifference(absl::Span<const uint8_t> bytes, absl::Span<const uint8_t> expected) {
  if (bytes.size() != expected.size()) return absl::StrCat(bytes.size(), " bytes instead of ", expected.size());
  const auto at = std::mismatch(bytes.begin(), bytes.end(), expected.begin());
  if (at.first == bytes.end()) return "";
  return absl::StrCat("byte ", at.first - bytes.begin(), " of ", bytes.size(), " is ", *at.first, " instead of ",
                      *at.second);
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_FIRST_DIFFERENCE_H_
