// Macros that return early on an error:
//
//   RR_RETURN_IF_ERROR(CheckAppendHeader(header));
//   RR_ASSIGN_OR_RETURN(const Geometry geometry, Geometry::Create(options));
//
// The enclosing function must return absl::Status, absl::StatusOr or a type constructible from a status. Arguments are
// evaluated once. The left side cannot be a type that contains a comma: use auto.
#ifndef PROTO_WIRE_STATUS_MACROS_H_
#define PROTO_WIRE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RR_RETURN_IF_ERROR(...) \
  if (absl::Status rr_status = (__VA_ARGS__); !rr_status.ok()) return rr_status

#define RR_ASSIGN_OR_RETURN(lhs, ...) RR_ASSIGN_OR_RETURN_IN(RR_STATUS_OR(__LINE__), lhs, __VA_ARGS__)
#define RR_ASSIGN_OR_RETURN_IN(result, lhs, ...)       \
  auto result = (__VA_ARGS__);                         \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)
#define RR_STATUS_OR(line) RR_STATUS_OR_JOIN(rr_status_or_, line)
#define RR_STATUS_OR_JOIN(name, line) name##line

#endif  // PROTO_WIRE_STATUS_MACROS_H_
