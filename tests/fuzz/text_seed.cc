#include <string>

#include "tests/fuzz/smoke.h"

namespace {

// Answers of vLLM and SGLang, shortened.
std::string MakeBody(std::mt19937_64& random) {
  static constexpr const char* kTexts[] = {
      R"("AAECAw==")",          R"("\u0041A==")", R"({"data": "AAEC", "shape": [1, 1, 3]})",
      R"(["AAEC", 1, "AwQF"])", "null",           R"("a\\\"b")"};
  const std::string text = kTexts[random() % 6];
  switch (random() % 4) {
    case 0:
      return R"({"choices": [{"index": 0, "routed_experts": )" + text + R"(}, {"routed_experts": "BBBB"}]})";
    case 1:
      return R"([{"meta_info": {"routed_experts": )" + text +
             R"(, "n": -1.5e3}}, {"text": "\"routed_experts\": \"x"}])";
    case 2:
      return R"({"sglext": {"routed_experts": )" + text + R"(}, "prompt_routed_experts": "CCCC", "deep": [[[{}]]]})";
    default:
      return R"({"routed_experts": )" + text + "}";
  }
}

}  // namespace

std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  const std::string text = MakeBody(random);
  return {text.begin(), text.end()};
}
