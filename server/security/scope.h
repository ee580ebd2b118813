// What a token may do.
#ifndef SERVER_SECURITY_SCOPE_H_
#define SERVER_SECURITY_SCOPE_H_

#include <cstdint>

namespace routing_replay::server {

enum class Scope : uint8_t { kPut = 1, kRead = 2, kAdmin = 4 };

// Any number of scopes. Where a call takes a set, one of it is enough.
class ScopeSet {
 public:
  constexpr ScopeSet() = default;
  constexpr ScopeSet(Scope scope) : bits_(static_cast<uint8_t>(scope)) {}  // NOLINT: a scope is a set of one.

  constexpr bool overlaps(ScopeSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr ScopeSet operator|(ScopeSet a, ScopeSet b) { return ScopeSet(a.bits_ | b.bits_); }
  friend constexpr bool operator==(ScopeSet, ScopeSet) = default;

 private:
  explicit constexpr ScopeSet(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  uint8_t bits_ = 0;
};
constexpr ScopeSet operator|(Scope a, Scope b) { return ScopeSet(a) | ScopeSet(b); }
inline constexpr ScopeSet kAnyScope = Scope::kPut | Scope::kRead | ScopeSet(Scope::kAdmin);

struct ScopeName {
  Scope scope;
  const char* name;  // As token files have it.
};
inline constexpr ScopeName kScopeNames[] = {{Scope::kPut, "put"}, {Scope::kRead, "read"}, {Scope::kAdmin, "admin"}};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_SCOPE_H_
