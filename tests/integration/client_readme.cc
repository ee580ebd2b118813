// The C++ examples of client/README.md, run against the server at ROUTING_REPLAY_ENDPOINT.
#include <gtest/gtest.h>

#include "routing_replay/client.h"

using namespace routing_replay;

absl::Status HandOver(const std::vector<uint32_t>& tokens, absl::Span<const uint8_t> int32_ids) {
  auto client = Client::Connect({});  // Uses the environment's ROUTING_REPLAY_ENDPOINT, or {.endpoint = "server:7400"}.
  if (!client.ok()) return client.status();
  auto run = (*client)->OpenRun("grpo-44", Geometry::Uniform(/*num_layers=*/48, /*num_experts=*/128, /*top_k=*/8));
  if (!run.ok()) return run.status();
  const int64_t num_tokens = tokens.size();

  auto appender = (*run)->NewAppender();
  absl::Status queued = appender->Append({.sample = "step1/0",
                                          .token_ids = absl::MakeConstSpan(tokens).first(num_tokens - 1),
                                          .seal_num_tokens = num_tokens},
                                         {.dtype = DType::kI32, .shape = {num_tokens - 1, 48, 8}}, int32_ids);
  if (!queued.ok()) return queued;
  return appender->Flush(std::chrono::seconds(30));
}

absl::StatusOr<std::vector<SampleRows>> ReadSome(Client& client) {
  auto run = client.JoinRun("grpo-44");
  if (!run.ok()) return run.status();
  return (*run)->ReadRows({.layers = {24, 25}, .samples = {{.sample = "step1/0", .rows = {{128, 192}}}}, .wait = true},
                          std::chrono::seconds(30));
}

TEST(ClientReadmeTest, WhatIsHandedOverIsRead) {
  const std::vector<uint32_t> tokens(200, 7);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 199 * 48 * 8; ++i) ids.push_back((i / 8) % 100 + i % 8);
  const absl::Status status = HandOver(tokens, {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * 4});
  ASSERT_TRUE(status.ok()) << status;
  const auto client = Client::Connect({});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto rows = ReadSome(**client);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ((*rows)[0].layers.size(), 2u);
  for (int64_t i = 0; i < 64 * 8; ++i) {
    EXPECT_EQ((*rows)[0].layers[1][i], ids[((128 + i / 8) * 48 + 25) * 8 + i % 8]);
  }
}
