#include "server/security/token_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace routing_replay::server {
namespace {

constexpr const char* kKeys[] = {"name", "sha256", "runs", "scopes", "max_runs", "expires"};

// Thrown and caught inside this file only, as are yaml-cpp's own exceptions.
struct Fault {
  std::string what;
};

std::vector<std::string> Texts(const YAML::Node& entry, const char* key) {
  const YAML::Node list = entry[key];
  if (!list || !list.IsSequence() || list.size() == 0)
    throw Fault{absl::StrCat(key, ": must be a list with at least one element")};
  std::vector<std::string> texts;
  for (const YAML::Node& item : list) texts.push_back(item.as<std::string>());
  return texts;
}

Sha256 ReadHash(const YAML::Node& entry) {
  const std::string hex = entry["sha256"].as<std::string>("");
  const bool digits =
      hex.size() == 64 && std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return absl::ascii_isxdigit(c); });
  if (!digits) throw Fault{"sha256: must be 64 hexadecimal digits: the hash of the token, not the token"};
  Sha256 hash;
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

ScopeSet ReadScopes(const YAML::Node& entry) {
  ScopeSet scopes;
  for (const std::string& text : Texts(entry, "scopes")) {
    const auto* known = std::find_if(std::begin(kScopeNames), std::end(kScopeNames),
                                     [&](const ScopeName& scope) { return text == scope.name; });
    if (known == std::end(kScopeNames)) throw Fault{absl::StrCat("scopes: '", text, "' must be put, read or admin")};
    scopes = scopes | known->scope;
  }
  return scopes;
}

std::optional<int64_t> ReadMaxRuns(const YAML::Node& entry) {
  const YAML::Node node = entry["max_runs"];
  if (!node) return std::nullopt;
  const auto runs = node.as<int64_t>(0);
  if (runs < 1) throw Fault{"max_runs: must be a number above 0"};
  return runs;
}

std::optional<std::chrono::system_clock::time_point> ReadExpiry(const YAML::Node& entry) {
  const YAML::Node node = entry["expires"];
  if (!node) return std::nullopt;
  const auto text = node.as<std::string>();
  absl::Time time;
  std::string ignored;
  if (!absl::ParseTime("%Y-%m-%d", text, &time, &ignored) &&
      !absl::ParseTime(absl::RFC3339_full, text, &time, &ignored)) {
    throw Fault{absl::StrCat("expires: '", text, "' must be a date (2027-01-31) or a time (2027-01-31T12:00:00Z)")};
  }
  return absl::ToChronoTime(time);
}

TokenGrant ReadGrant(const YAML::Node& entry) {
  if (!entry.IsMap()) throw Fault{"must be a mapping of keys"};
  std::set<std::string> keys;
  for (const auto& item : entry) {
    const auto key = item.first.as<std::string>();
    // A duplicate key is ambiguous: readers could not know which value counts.
    if (!keys.insert(key).second) throw Fault{absl::StrCat("key '", key, "' is given twice")};
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      throw Fault{absl::StrCat("unknown key '", key, "'")};
    }
  }
  TokenGrant grant{.name = entry["name"].as<std::string>(""), .sha256 = ReadHash(entry)};
  if (grant.name.empty()) throw Fault{"name: is missing"};
  grant.run_prefixes = Texts(entry, "runs");
  grant.scopes = ReadScopes(entry);
  grant.max_runs = ReadMaxRuns(entry);
  grant.expires = ReadExpiry(entry);
  return grant;
}

// True if a line "---" follows the first line of content (one that is neither empty, nor a comment, nor "---").
// YAML::LoadAll could tell that, but does not terminate for some invalid YAML.
bool HasSecondDocument(const std::string& text) {
  bool begun = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool separates = absl::StartsWith(line, "---");
    if (begun && separates) return true;
    line = absl::StripAsciiWhitespace(line);
    begun = begun || !(separates || line.empty() || line[0] == '#');
  }
  return false;
}

}  // namespace

bool TokenGrant::covers(absl::string_view run) const {
  return std::any_of(run_prefixes.begin(), run_prefixes.end(),
                     [&](const std::string& prefix) { return absl::StartsWith(run, prefix); });
}

absl::StatusOr<std::vector<TokenGrant>> ParseTokenFile(const std::string& text) {
  // A file that is only partly written may be a valid list with wider grants than the whole, for example without an
  // expiry that follows. A newline at the end shows that no line is cut off; YAML::Load rejects open brackets.
  if (!text.empty() && !absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "[") && !absl::EndsWith(text, "\n")) {
    return absl::InvalidArgumentError("the file: must end with a newline; it may be incomplete");
  }
  std::string at = "the file";
  try {
    if (HasSecondDocument(text)) throw Fault{"must be one YAML document"};
    const YAML::Node file = YAML::Load(text);
    if (!file.IsSequence()) throw Fault{"must be a list of tokens"};
    std::vector<TokenGrant> grants;
    for (const YAML::Node& entry : file) {
      at = absl::StrCat("entry ", grants.size() + 1);
      grants.push_back(ReadGrant(entry));
    }
    return grants;
  } catch (const Fault& fault) {
    return absl::InvalidArgumentError(absl::StrCat(at, ": ", fault.what));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(at, ": ", error.what()));
  }
}

}  // namespace routing_replay::server
