#include "routing_replay/trainer/layers.h"

#include "absl/strings/str_join.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::HasSubstr;

std::string Written(const std::string& text) {
  const auto layout = ParsePipelineLayout(text);
  EXPECT_OK(layout);
  return layout.ok() ? absl::StrJoin(layout->stages, "|") : "";
}

TEST(ParsePipelineLayout, WritesRepeatsOut) {
  EXPECT_EQ(Written("Et*3|(tt|)*3m|L"), "Ettt|tt|tt|tt|m|L");
  EXPECT_EQ(Written("E,t,*,3|t,L"), "Ettt|tL");
  EXPECT_EQ(Written("(t|t)*2"), "t|tt|t");
  EXPECT_EQ(Written("E(t*2|)*3L"), "Ett|tt|tt|L");
  EXPECT_EQ(Written("Et*0|tL"), "E|tL");
  EXPECT_EQ(Written("Et*003L"), "EtttL");
  EXPECT_EQ(Written(""), "");
  EXPECT_EQ(Written("|*2"), "||");
  // The group is expanded first; then *3 repeats its last character.
  EXPECT_EQ(Written("(t)*2*3"), "tttt");
}

TEST(ParsePipelineLayout, RejectsWhatMegatronRejects) {
  for (const char* text : {"xy", "(ab)*2", "E((t|)*2)*2L", "t*2*2", "E t", "et|l", "Et*|tL", "E(tt|)3L", "()*2", "*3",
                           "t*-1", "(t", "t)"}) {
    EXPECT_THAT(ParsePipelineLayout(text), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
  }
}

TEST(ParsePipelineLayout, RepeatsAreBounded) {
  for (const char* text : {"t*99999999999999999999", "(tt|)*60000", "(t*9999|)*999", "t*65536t"}) {
    const auto layout = ParsePipelineLayout(text);
    EXPECT_THAT(layout, Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
    EXPECT_THAT(std::string(layout.status().message()), HasSubstr("65536")) << text;
  }
  EXPECT_THAT(ParsePipelineLayout(std::string(kMaxLayoutText + 1, 't')),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST(PipelineLayoutFromNames, AnyCase) {
  ASSERT_OK_AND_ASSIGN(const PipelineLayout layout,
                       PipelineLayoutFromNames({{"embedding", " Decoder "}, {}, {"decoder", "MTP", "loss"}}));
  EXPECT_EQ(layout, *ParsePipelineLayout("Et||tmL"));
  for (const char* name : {"encoder", "t", "", "decoders"}) {
    EXPECT_THAT(PipelineLayoutFromNames({{name}}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << name;
  }
}

TEST(PipelineLayout, RejectionsStateTheRule) {
  const auto rejected = [](const std::string& text, int32_t pipeline_size, int32_t layers, int32_t mtp,
                           const std::string& words) {
    const auto table = LayerTable::Create({.num_layers = layers,
                                           .pipeline_size = pipeline_size,
                                           .layout = *ParsePipelineLayout(text),
                                           .mtp_num_layers = mtp});
    EXPECT_THAT(table, Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(words)) << text;
  };
  rejected("Ett|tt|ttL", 2, 6, 0, "3 stages are not a multiple of 2 pipeline ranks");
  rejected("Ett|ttL", 1, 4, 0, "at least two pipeline ranks");
  rejected("tE|tL", 2, 2, 0, "embedding (E)");
  rejected("EtEt|tL", 2, 3, 0, "embedding (E)");
  rejected("", 1, 2, 0, "embedding (E)");
  rejected("Et|tt", 2, 3, 0, "loss (L)");
  rejected("Ett|LtL", 2, 3, 0, "loss (L)");
  rejected("Ett|ttL", 2, 5, 0, "4 decoder layers (t), not num_layers = 5");
  rejected("Et|tmL", 2, 2, 0, "1 MTP layers (m), not mtp_num_layers = 0");
  rejected("Et|tL", 2, 2, 1, "0 MTP layers (m), not mtp_num_layers = 1");
  rejected("Etm|tL", 2, 2, 1, "must not follow an MTP layer");
  rejected("Et|tm|m|L", 2, 2, 2, "must all be in one stage");
  rejected("Et|tm||L", 2, 2, 1, "last chunk");
}

TEST(PipelineLayout, EntriesMadeByHandAreChecked) {
  const LayerSplit split{.num_layers = 2, .pipeline_size = 2, .layout = PipelineLayout{{"Etx", "tL"}}};
  EXPECT_THAT(LayerTable::Create(split), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::trainer
