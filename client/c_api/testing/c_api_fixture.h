// For tests of the C functions as a C program uses them, against a fake server.
#ifndef CLIENT_C_API_TESTING_C_API_FIXTURE_H_
#define CLIENT_C_API_TESTING_C_API_FIXTURE_H_

#include <poll.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "client/c_api/testing/values.h"
#include "client/testing/client_fixture.h"
#include "routing_replay/c_api.h"

namespace routing_replay::client {

inline constexpr rr_call kBlocking{.timeout_ms = 60'000};

// A completion queue with a blocking wait.
class TestQueue {
 public:
  TestQueue() { EXPECT_DONE(rr_queue_new(&queue_)); }
  ~TestQueue() { rr_object_free(queue_); }

  rr_call Call(uint64_t tag) { return {.timeout_ms = 60'000, .queue = queue_, .tag = tag}; }
  rr_queue* get() { return queue_; }

  bool Readable(int timeout_ms) const {
    pollfd descriptor{.fd = rr_queue_descriptor(queue_), .events = POLLIN};
    return poll(&descriptor, 1, timeout_ms) == 1;
  }
  // Returns the next completions, by tag.
  std::map<uint64_t, Failure> Wait(size_t count) {
    std::map<uint64_t, Failure> ends;
    while (ends.size() < count && Readable(60'000)) {
      rr_ended ended[2];
      const size_t taken = rr_queue_take(queue_, ended, 2);
      for (size_t i = 0; i < taken; ++i) ends.emplace(ended[i].tag, Failure(ended[i].error));
    }
    EXPECT_EQ(ends.size(), count);
    return ends;
  }

 private:
  rr_queue* queue_ = nullptr;
};

class CApiTest : public routing_replay::testing::ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    const rr_client_options options{.endpoint = Text(service_.endpoint()), .tls = -1, .call_timeout_ms = -1};
    ASSERT_DONE(rr_client_new(&options, &c_client_));
    ASSERT_DONE(Join("run", &c_run_));
  }
  void TearDown() override {
    rr_object_free(c_run_);
    rr_object_free(c_client_);
  }

  rr_error* Join(absl::string_view name, rr_run** run, int64_t wait_ms = 0) {
    return rr_client_open_run(c_client_, Text(name), nullptr, nullptr, {}, wait_ms, &kBlocking, run);
  }
  void PutRows(const std::string& sample, const std::vector<uint8_t>& ids) {
    const RowRange rows{0, static_cast<int64_t>(ids.size())};
    ASSERT_OK(run_->Put({.sample = sample, .seal_num_tokens = rows.end + 1}, Tensor(rows), Bytes(ids, rows)));
  }

  std::mt19937_64 random_{7};
  rr_client* c_client_ = nullptr;
  rr_run* c_run_ = nullptr;
};

}  // namespace routing_replay::client

#endif  // CLIENT_C_API_TESTING_C_API_FIXTURE_H_
