// Helpers for the kinds of router files: numbers, ids, and comparison.
#ifndef TESTS_GOLDEN_KINDS_ROUTER_CASE_H_
#define TESTS_GOLDEN_KINDS_ROUTER_CASE_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/router_config.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// A number, or one of the strings "nan", "inf", "-inf".
inline double Number(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

template <typename D>
std::vector<D> Matrix(const Json& json) {
  std::vector<D> values;
  for (const Json& row : json) {
    for (const Json& value : row) {
      if constexpr (std::is_same_v<D, double>) {
        values.push_back(Number(value));
      } else {
        values.push_back(D(static_cast<float>(Number(value))));
      }
    }
  }
  return values;
}

inline double ToDouble(double value) { return value; }
inline double ToDouble(float value) { return value; }
inline double ToDouble(trainer::Bf16 value) { return static_cast<float>(value); }

// Describes the first entry that differs by more than `tolerance`; returns "" if there is none. Where Megatron's value
// is NaN or infinite, ours must be finite.
template <typename D>
std::string FirstDifference(const char* what, const std::vector<D>& ours, const Json& expected, double tolerance) {
  const std::vector<double> theirs = Matrix<double>(expected);
  if (ours.size() != theirs.size()) return absl::StrCat(what, " has ", ours.size(), " entries, not ", theirs.size());
  const size_t columns = expected.at(0).size();
  for (size_t i = 0; i < ours.size(); ++i) {
    const double value = ToDouble(ours[i]);
    if (std::isfinite(theirs[i]) ? std::abs(value - theirs[i]) <= tolerance : std::isfinite(value)) continue;
    return absl::StrCat(what, "[", i / columns, "][", i % columns, "] is ", value, ", expected ", theirs[i], " within ",
                        tolerance);
  }
  return "";
}

// Returns the router of a case. A missing field means the same as null.
trainer::RouterConfig RouterOf(const Json& input, trainer::Rounding rounding);

// Returns the ids [rows][K] in the form of index buffers: one or two bytes per id.
std::vector<uint8_t> CompactIds(const trainer::RouterConfig& config, const Json& rows);
// The inverse of CompactIds.
Json Slots(const trainer::RouterConfig& config, const std::vector<uint8_t>& ids);
// Returns, for each row of a routing map [rows][E], its experts in ascending order.
Json Experts(const trainer::RouterConfig& config, const std::vector<uint8_t>& map);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_ROUTER_CASE_H_
