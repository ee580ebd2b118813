// What engines emit, as a C program sees it.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "routing_replay/c_api.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::c_api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

rr_text Text(absl::string_view text) { return {text.data(), text.size()}; }
std::string String(rr_text text) { return {text.data, text.size}; }

// "REASON field", and frees it.
std::string Refusal(rr_error* error) {
  if (error == nullptr) return "";
  std::string refusal = absl::StrCat(String(error->reason), " ", String(error->field));
  rr_free(error);
  return refusal;
}

std::vector<int64_t> Shape(const rr_form* form) { return {form->shape, form->shape + form->shape_count}; }

TEST(FormsTest, APayloadTellsItsShape) {
  const uint8_t payload[24] = {};
  const int64_t row[] = {2, 3};
  rr_tensor tensor{
      .data = payload, .size = 24, .encoding = Text("RAW"), .dtype = Text("U16"), .shape = row, .shape_count = 2};
  const rr_form* form = nullptr;
  ASSERT_EQ(Refusal(rr_payload_shape(&tensor, &form)), "");
  EXPECT_THAT(Shape(form), ElementsAre(2, 2, 3));
  EXPECT_EQ(String(form->dtype), "U16");
  rr_free(form);
  tensor.size = 23;
  EXPECT_EQ(Refusal(rr_payload_shape(&tensor, &form)), "ENCODING payload");
  tensor.dtype = Text("F32");
  EXPECT_EQ(Refusal(rr_payload_shape(&tensor, &form)), "FIELD append.tensor.dtype");
}

TEST(FormsTest, TextsAndObjectsAreOpened) {
  const std::string text = "nrlre1:int16:2x1x1:AAAAAA==";
  const rr_form* form = nullptr;
  ASSERT_EQ(Refusal(rr_open_nrlre1(text.data(), text.size(), &form)), "");
  EXPECT_EQ(String(form->encoding), "BASE64");
  EXPECT_EQ(String(form->dtype), "I16");
  EXPECT_THAT(Shape(form), ElementsAre(2, 1, 1));
  EXPECT_EQ(text.substr(form->data.begin, form->data.end - form->data.begin), "AAAAAA==");
  rr_free(form);
  EXPECT_EQ(Refusal(rr_open_nrlre1("x", 1, &form)), "ENCODING payload");

  ASSERT_EQ(Refusal(rr_open_object(Text("prime_rl"), Text(R"({"shape": [2, 1, 1], "start": 5})"), &form)), "");
  EXPECT_EQ(String(form->dtype), "U8");
  EXPECT_EQ(form->start, 5);
  rr_free(form);
  EXPECT_EQ(Refusal(rr_open_object(Text("other"), Text("{}"), &form)), "FIELD dialect");
}

TEST(FormsTest, SkyRlWritesOneDTypeForGivenIds) {
  const int16_t small[] = {1, 2}, large[] = {1, 300};
  const int64_t shape[] = {2, 1, 1};
  rr_tensor tensor{.data = small,
                   .size = sizeof(small),
                   .encoding = Text("RAW"),
                   .dtype = Text("I16"),
                   .shape = shape,
                   .shape_count = 3};
  EXPECT_THAT(Refusal(rr_check_narrowest(&tensor)), HasSubstr("DTYPE"));
  tensor.data = large;
  EXPECT_EQ(Refusal(rr_check_narrowest(&tensor)), "");
}

TEST(FormsTest, RowsOfFilesAreFound) {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 1), }";
  header.resize(117, ' ');
  const std::string file = absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header, "\nab");
  const rr_form* form = nullptr;
  ASSERT_EQ(Refusal(rr_open_rows_file(file.data(), file.size(), {}, &form)), "");
  EXPECT_EQ(String(form->encoding), "RAW");
  EXPECT_EQ(file.substr(form->data.begin, form->data.end - form->data.begin), "ab");
  rr_free(form);

  const rr_ranges* ranges = nullptr;
  ASSERT_EQ(Refusal(rr_trace_sequences(Text(R"({"seq_lens": [2, 3]})"), Text("file"), 5, &ranges)), "");
  ASSERT_EQ(ranges->count, 2U);
  EXPECT_EQ(ranges->data[1].begin, 2);
  EXPECT_EQ(ranges->data[1].end, 5);
  rr_free(ranges);
  EXPECT_THAT(Refusal(rr_trace_sequences(Text(R"({"seq_lens": [2]})"), Text("file"), 5, &ranges)),
              HasSubstr("ROW_COUNT"));
}

TEST(FormsTest, RoutesOfABodyAreFound) {
  const std::string body = R"({"choices": [{"routed_experts": "AAAA"}]})";
  const rr_routes* routes = nullptr;
  ASSERT_EQ(Refusal(rr_find_routes(body.data(), body.size(), &routes)), "");
  ASSERT_EQ(routes->count, 1U);
  const rr_route& route = routes->data[0];
  ASSERT_EQ(route.path_count, 3U);
  EXPECT_EQ(String(route.path[0].key), "choices");
  EXPECT_EQ(route.path[0].index, -1);
  EXPECT_EQ(route.path[1].index, 0);
  EXPECT_EQ(String(route.path[2].key), "routed_experts");
  EXPECT_EQ(body.substr(route.data.begin, route.data.end - route.data.begin), "AAAA");
  rr_free(routes);
  EXPECT_EQ(Refusal(rr_find_routes("1", 1, &routes)), "ENCODING body");
}

TEST(FormsTest, RowsAreAccountedFor) {
  rr_row_claim claim{.prompt_tokens = 3, .output_tokens = 2, .rows = 5};
  rr_row_account account{};
  ASSERT_EQ(Refusal(rr_account_rows(&claim, &account)), "");
  EXPECT_EQ(account.take.end, 4);
  EXPECT_EQ(account.surplus_rows, 1);
  claim.rows = 3;
  EXPECT_EQ(Refusal(rr_account_rows(&claim, &account)), "ROW_COUNT append.rows");
  claim.missing_at_front = 1;
  ASSERT_EQ(Refusal(rr_account_rows(&claim, &account)), "");
  EXPECT_EQ(account.missing_rows, 1);
}

TEST(FormsTest, VersionsOfOutputTokensAreWeightsOfRows) {
  const rr_weight_span versions[] = {{0, 1, -1, Text("7")}, {1, 2, 9, Text("name")}, {2, 3, -1, Text("other")}};
  const rr_weights* weights = nullptr;
  ASSERT_EQ(Refusal(rr_output_weights(versions, 3, 4, 4, 0, &weights)), "");
  ASSERT_EQ(weights->count, 3U);
  EXPECT_EQ(weights->data[0].begin, 0);
  EXPECT_EQ(weights->data[0].end, 4);
  EXPECT_EQ(weights->data[0].version, 7);
  EXPECT_EQ(weights->data[1].version, 9);
  EXPECT_EQ(String(weights->data[1].label), "name");
  EXPECT_EQ(weights->data[2].version, -1);
  rr_free(weights);
  EXPECT_THAT(Refusal(rr_output_weights(versions, 3, 4, 2, 0, &weights)), HasSubstr("FIELD weight_versions"));
}

}  // namespace
}  // namespace routing_replay::c_api
