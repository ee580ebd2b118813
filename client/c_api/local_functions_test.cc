// Tests reading engines' answers as a C program does.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "routing_replay/c_api.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::c_api {
namespace {

using ::testing::ElementsAre;

rr_text Text(absl::string_view text) { return {text.data(), text.size()}; }
std::string String(rr_text text) { return {text.data, text.size}; }

// Returns "REASON field", and frees the error.
std::string Rejection(rr_error* error) {
  if (error == nullptr) return "";
  std::string rejection = absl::StrCat(String(error->reason), " ", String(error->field));
  rr_free(error);
  return rejection;
}

std::vector<int64_t> Shape(const rr_form* form) { return {form->shape, form->shape + form->shape_count}; }

TEST(FormsTest, APayloadTellsItsShape) {
  const uint8_t payload[24] = {};
  const int64_t axes[] = {2, 2, 3};
  rr_tensor tensor{
      .data = payload, .size = 24, .encoding = Text("RAW"), .dtype = Text("U16"), .shape = axes, .shape_count = 3};
  const rr_form* form = nullptr;
  ASSERT_EQ(Rejection(rr_payload_shape(&tensor, &form)), "");
  EXPECT_THAT(Shape(form), ElementsAre(2, 2, 3));
  rr_free(form);
  tensor.shape_count = 0;
  EXPECT_EQ(Rejection(rr_payload_shape(&tensor, &form)), "SHAPE append.tensor.shape");
  tensor.dtype = Text("F32");
  EXPECT_EQ(Rejection(rr_payload_shape(&tensor, &form)), "FIELD append.tensor.dtype");
}

TEST(FormsTest, RoutesOfABodyAreFound) {
  const std::string body = R"({"choices": [{"routed_experts": "AAAA"}]})";
  const rr_routes* routes = nullptr;
  ASSERT_EQ(Rejection(rr_find_routes(body.data(), body.size(), &routes)), "");
  ASSERT_EQ(routes->count, 1U);
  const rr_route& route = routes->data[0];
  ASSERT_EQ(route.path_count, 3U);
  EXPECT_EQ(String(route.path[0].key), "choices");
  EXPECT_EQ(route.path[0].index, -1);
  EXPECT_EQ(route.path[1].index, 0);
  EXPECT_EQ(String(route.path[2].key), "routed_experts");
  EXPECT_EQ(body.substr(route.data.begin, route.data.end - route.data.begin), "AAAA");
  rr_free(routes);
  EXPECT_EQ(Rejection(rr_find_routes("1", 1, &routes)), "ENCODING body");
}

}  // namespace
}  // namespace routing_replay::c_api
