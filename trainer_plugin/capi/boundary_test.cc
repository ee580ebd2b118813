#include "trainer_plugin/capi/boundary.h"

#include <stdexcept>

#include "tests/support/status_matchers.h"

namespace routing_replay::capi {
namespace {

struct test_error : ErrorObject {
  using ErrorObject::ErrorObject;
};

template <typename Body>
std::pair<int, std::string> Outcome(Body body) {
  const std::unique_ptr<test_error> error(Barrier<test_error>(body));
  if (!error) return {0, ""};
  return {error->code(), ParseJson(error->json(), "")->at("message").get<std::string>()};
}

TEST(BarrierTest, StatusesAndExceptionsBecomeErrors) {
  using P = std::pair<int, std::string>;
  EXPECT_EQ(Outcome([] { return absl::OkStatus(); }), P(0, ""));
  EXPECT_EQ(Outcome([] { return absl::NotFoundError("no\0such"); }), P(5, "no"));
  EXPECT_EQ(Outcome([]() -> absl::Status { throw std::bad_alloc(); }), P(8, "out of memory"));
  EXPECT_EQ(Outcome([]() -> absl::Status { throw std::runtime_error("x"); }), P(13, "unexpected exception: x"));
  EXPECT_EQ(Outcome([]() -> absl::Status { throw 1; }), P(13, "unexpected exception"));
}

TEST(BytesTest, OwnWhatTheyShow) {
  const BytesObject text(std::string("abc"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(text.data()), text.size()), "abc");
  Buffer buffer(2);
  buffer.data()[0] = 7;
  const uint8_t* address = buffer.data();
  const BytesObject moved(std::move(buffer));
  EXPECT_EQ(moved.data(), address);
  EXPECT_EQ(moved.size(), 2u);
  EXPECT_EQ(BytesObject(Buffer()).size(), 0u);
}

TEST(GiveTest, TextAndJson) {
  struct Object : BytesObject {
    using BytesObject::BytesObject;
  };
  Object* out = nullptr;
  EXPECT_OK(Give(nlohmann::json{{"a", 1}}, &out));
  const std::unique_ptr<Object> owned(out);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out->data()), out->size()), R"({"a":1})");
}

}  // namespace
}  // namespace routing_replay::capi
