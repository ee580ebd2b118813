#include <string>

#include "tests/fuzz/smoke.h"

namespace {

std::string MakeOf(std::mt19937_64& random, const char* const* parts, size_t count) {
  std::string text;
  for (uint64_t n = random() % 12; n > 0; --n) text += parts[random() % count];
  return text;
}

std::string MakePlan(std::mt19937_64& random) {
  const std::string cp = std::to_string(1 + random() % 3), tokens = std::to_string(random() % 20);
  return R"({"geometry": {"num_layers": 6, "num_experts": 64, "top_k": 6, "moe_layers": [1, 2, 5]},)"
         R"("split": {"pipeline_size": 2}, "micro_batch": {"format": "THD", "sequences": [{"sample": "a", "tokens": )" +
         tokens + R"(}, {"tokens": 8}], "cu_seqlens_padded": [0, 24, 48], "total_rows": 48, "partition": )" +
         (random() % 2 == 0 ? R"("zigzag_per_document")" : R"("contiguous_per_document")") + R"(, "cp_size": )" + cp +
         R"(, "tp_size": 2, "sequence_parallel": true}, "rank": {"pp": 1, "cp": 0, "tp": 1}})";
}

std::string MakeTokens(std::mt19937_64& random) {
  const std::string hash(64, "0a"[random() % 2]);
  return "- name: rollout\n  sha256: " + hash + "\n  runs: [grpo-, \"\"]\n  scopes: [put, read]\n" +
         (random() % 2 == 0 ? "  max_runs: 20\n" : "  expires: 2027-01-31T01:00:00+01:00\n");
}

// Returns an index without its last line, the checksum, which CheckIndex adds.
std::string MakeIndex(std::mt19937_64& random) {
  const std::string rows = std::to_string(random() % 9);
  return R"({"version": 2, "run": "r", "producer": "rollout", "geometry": {"num_layers": 2, "moe_layers": [0, 1],)"
         R"("num_experts": 64, "top_k": 4}, "samples": [{"sample": "s", "num_tokens": 41, "revision": 1,)"
         R"("unrecorded": [[)" +
         rows +
         R"(, 9]], "weights": [[0, 40, 3, "v"]], "token_checks": [[40, 7]], "file": "00000000.npy",)"
         R"("file_bytes": 400, "crc32c": 1}],)";
}

std::string Make(uint8_t kind, std::mt19937_64& random) {
  static constexpr const char* kStages[] = {"E", "t", "tt", "|", "L", "m", "(tt|)*3", "t*29", "*2", ",", "(t|m)"};
  static constexpr const char* kSymbols[] = {"M", "E", "*", "-", "|", "/", "ME", "G", "/*E", "D", "+"};
  static constexpr const char* kSettings[] = {"listen: [127.0.0.1:7400]\n",
                                              "memory-budget: 2GiB\n",
                                              "store: rocksdb:/data\n",
                                              "store: redis://host:6379\n",
                                              "durability: synced\n",
                                              "drain-timeout: 15s\n",
                                              "threads: 4\n",
                                              "log-level: info\n",
                                              "insecure: true\n",
                                              "run-budget: 0\n",
                                              "max-connection-age: 1h\n"};
  switch (kind % 6) {
    case 0:
      return MakePlan(random);
    case 1:
      return MakeOf(random, kStages, std::size(kStages));
    case 2:
      return MakeOf(random, kSymbols, std::size(kSymbols));
    case 3:
      return MakeTokens(random);
    case 4:
      return MakeIndex(random);
    default:
      return MakeOf(random, kSettings, std::size(kSettings));
  }
}

}  // namespace

std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  const auto kind = static_cast<uint8_t>(random());
  const std::string text = Make(kind, random);
  std::string seed(1, static_cast<char>(kind));
  seed += text;
  return {seed.begin(), seed.end()};
}
