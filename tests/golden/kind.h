// A kind of golden file: the names of its files, and the function that runs one of its cases.
#ifndef TESTS_GOLDEN_KIND_H_
#define TESTS_GOLDEN_KIND_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace routing_replay::golden {

using Json = nlohmann::json;

struct Outcome {
  enum class Verdict { kPassed, kFailed, kNeeds };
  Verdict verdict = Verdict::kPassed;
  std::string words;  // The first difference, what is not installed, or the part that a passed case skipped.
};
inline Outcome Passed() { return {}; }
inline Outcome PassedWithout(std::string words) { return {Outcome::Verdict::kPassed, std::move(words)}; }
inline Outcome Failed(std::string words) { return {Outcome::Verdict::kFailed, std::move(words)}; }
inline Outcome Needs(std::string words) { return {Outcome::Verdict::kNeeds, std::move(words)}; }

struct Kind {
  // Names of the kind's files, without extensions. A name that ends in '_' stands for all names that begin with it. If
  // another kind has the full name of a file, the file is of that kind.
  std::vector<std::string> stems;
  // Runs one case. May throw the JSON library's exceptions, which the runner counts as a failed case.
  Outcome (*run)(const Json& golden_case) = nullptr;
};

// The kinds that C++ code runs, each in a file of kinds/.
Kind CodecKind();
Kind CodecMsSwiftKind();
Kind CodecNemoKind();
Kind CodecPrimeRlKind();
Kind CodecSkyRlKind();
Kind CodecTurnsKind();
Kind CpSlicesKind();
Kind FrameworkLayersKind();
Kind HybridKind();
Kind InvalidLayersKind();
Kind LayersKind();
Kind LayersLayoutKind();
Kind LayoutParseKind();
Kind MoePatternKind();
Kind PaddingKind();
Kind R2Kind();
Kind RoutingEdgeIndicesKind();
Kind RoutingKind();
Kind RowsKind();
Kind ScheduleKind();

// All of the above.
const std::vector<Kind>& AnsweredKinds();

// IsWholeStem: whether one of `stems` is equal to `stem`. HasPrefix: whether one of `stems` ends in '_' and `stem`
// begins with it.
bool IsWholeStem(const std::vector<std::string>& stems, const std::string& stem);
bool HasPrefix(const std::vector<std::string>& stems, const std::string& stem);
// The kind for files with this name, or null.
const Kind* FindKind(const std::string& stem);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KIND_H_
