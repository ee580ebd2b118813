// layout_parse: expands the text form of layouts, with any order and counts of stages.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/trainer/layers.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {
namespace {

Outcome RunLayoutParse(const Json& golden_case) {
  const auto layout = trainer::ParsePipelineLayout(golden_case.at("input").at("layout").get<std::string>());
  const Json& expect = golden_case.at("expect");
  if (!expect.at("raises").is_null()) return layout.ok() ? Failed("accepted, expected a rejection") : Passed();
  if (!layout.ok()) return Failed(absl::StrCat("rejected: ", layout.status().message()));
  if (expect.at("stages").get<std::vector<std::string>>() != layout->stages) {
    return Failed(absl::StrCat("stages ", absl::StrJoin(layout->stages, "|")));
  }
  if (expect.at("num_stages").get<size_t>() != layout->stages.size())
    return Failed(absl::StrCat(layout->stages.size(), " stages"));
  return Passed();
}

}  // namespace

Kind LayoutParseKind() { return {{"layout_parse"}, RunLayoutParse}; }

}  // namespace routing_replay::golden
