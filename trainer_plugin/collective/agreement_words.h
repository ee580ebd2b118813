// Words whose maxima over all ranks say what the ranks have in common.
#ifndef TRAINER_PLUGIN_COLLECTIVE_AGREEMENT_WORDS_H_
#define TRAINER_PLUGIN_COLLECTIVE_AGREEMENT_WORDS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::trainer {

// The least that a word can be: what a rank says that has nothing to say.
inline constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();

struct Extremes {
  int64_t least = 0;
  int64_t greatest = 0;
};

// Each call appends the words of one fact.
class WordWriter {
 public:
  // The greatest of what ranks say.
  void Greatest(std::optional<int64_t> value) { words_.push_back(value.value_or(kNothing)); }
  // The least: ~ turns the order around and, unlike a minus, has a result for every number.
  void Least(std::optional<int64_t> value) { words_.push_back(value ? ~*value : kNothing); }
  // Both.
  void Both(std::optional<int64_t> value) {
    Greatest(value);
    Least(value);
  }
  std::vector<int64_t> Take() { return std::move(words_); }

 private:
  std::vector<int64_t> words_;
};

// The same calls in the same order, on the maxima.
class WordReader {
 public:
  explicit WordReader(absl::Span<const int64_t> words) : words_(words) {}

  // Not set where no rank said anything. No rank may say kNothing here, or ~kNothing to Least.
  std::optional<int64_t> Greatest() {
    const int64_t word = Next();
    if (word == kNothing) return std::nullopt;
    return word;
  }
  std::optional<int64_t> Least() {
    const int64_t word = Next();
    if (word == kNothing) return std::nullopt;
    return ~word;
  }
  // Of any numbers: what is kNothing in one of the words is not in the other.
  std::optional<Extremes> Both() {
    const int64_t greatest = Next(), inverted = Next();
    if (greatest == kNothing && inverted == kNothing) return std::nullopt;
    return Extremes{~inverted, greatest};
  }

 private:
  int64_t Next() {
    const int64_t word = words_.front();
    words_.remove_prefix(1);
    return word;
  }

  absl::Span<const int64_t> words_;
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_COLLECTIVE_AGREEMENT_WORDS_H_
