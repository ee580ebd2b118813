// What the runner knows of a kind of golden file: whose files it takes, and how one case is asked.
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
  std::string words;  // The first difference, or what is not installed here, or which part a passed case left out.
};
inline Outcome Passed() { return {}; }
inline Outcome PassedWithout(std::string words) { return {Outcome::Verdict::kPassed, std::move(words)}; }
inline Outcome Failed(std::string words) { return {Outcome::Verdict::kFailed, std::move(words)}; }
inline Outcome Needs(std::string words) { return {Outcome::Verdict::kNeeds, std::move(words)}; }

struct Kind {
  // Stems of the kind's files. One that ends in '_' stands for all that begin so; a whole stem goes before those.
  std::vector<std::string> stems;
  // Asks one case of a file. May throw what the JSON library throws: a case of another form fails.
  Outcome (*run)(const Json& golden_case) = nullptr;
};

// Kinds that the project answers, one file each in kinds/.
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

// Whether `stem` is the very name, or begins with a name that ends in '_'.
bool IsWholeStem(const std::vector<std::string>& stems, const std::string& stem);
bool HasPrefix(const std::vector<std::string>& stems, const std::string& stem);
// The kind that answers files of this stem, or null.
const Kind* FindKind(const std::string& stem);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KIND_H_
