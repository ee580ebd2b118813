// Ids that engines send as text: a JSON body with base64 of an .npy file.
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/json/routes.h"
#include "proto/wire/payload/tensor_payload.h"
#include "tests/bench/wire/operation_support.h"

namespace routing_replay::bench {
namespace {

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string NpyFile(const WireSample& sample) {
  std::string header = absl::StrCat("{'descr': '", sample.layer().id_bytes() == 1 ? "|u1" : "<u2",
                                    "', 'fortran_order': False, 'shape': (", sample.rows(), ", ",
                                    sample.geometry().num_moe_layers(), ", ", sample.layer().top_k, "), }");
  header.resize(117, ' ');
  std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + '\n';
  const absl::Span<const uint8_t> ids = sample.narrow();
  return file.append(reinterpret_cast<const char*>(ids.data()), ids.size());
}

// Finds the base64 in the body of a response, as routing_replay.http does.
Operation FindInJson(const WireSample& sample, const std::string& base64) {
  std::string tokens = "0";
  for (int64_t i = 1; i < sample.rows(); ++i) absl::StrAppend(&tokens, ",", i);
  const auto body = std::make_shared<const std::string>(
      absl::StrCat(R"({"id":"cmpl-1","choices":[{"index":0,"token_ids":[)", tokens, R"(],"routed_experts":")", base64,
                   R"(","finish_reason":"stop"}],"usage":{"completion_tokens":)", sample.rows(), "}}"));
  const auto found = std::make_shared<absl::Span<const uint8_t>>();
  const absl::Span<const uint8_t> expected = AsBytes(*body).subspan(body->find(base64), base64.size());
  return MakeOperation(
      sample, "json-find", AsBytes(*body), expected,
      [body, found](uint8_t*) {
        const auto routes = FindRoutes(AsBytes(*body));
        *found = routes.ok() && routes->size() == 1 ? AsBytes(*body).subspan((*routes)[0].begin, (*routes)[0].size)
                                                    : absl::Span<const uint8_t>();
      },
      [found](uint8_t* out) { std::memcpy(out, found->data(), found->size()); });
}

// The client's whole work on the base64.
Operation EncodeBase64Npy(const WireSample& sample, const std::string& base64) {
  const auto text = std::make_shared<const std::string>(base64);
  const Codec codec = sample.geometry().default_codec();
  const EncodedSample& expected = codec == Codec::kRaw ? sample.raw() : sample.packed();
  const auto blocks = std::make_shared<std::vector<Block>>();
  return MakeOperation(
      sample, "encode-base64-npy", AsBytes(*text), expected.bytes.span(),
      [&sample, text, codec, blocks](uint8_t*) {
        auto decoded =
            DecodeTensor(sample.geometry(), {.encoding = Encoding::kBase64Npy}, AsBytes(*text), {.codec = codec});
        *blocks = decoded.ok() ? std::move(decoded->blocks) : std::vector<Block>();
      },
      [blocks](uint8_t* out) {
        for (const Block& block : *blocks) {
          std::memcpy(out, block.bytes.data(), block.bytes.size());
          out += block.bytes.size();
        }
      });
}

}  // namespace

std::vector<Operation> TextOperations(const WireSample& sample) {
  const std::string base64 = absl::Base64Escape(NpyFile(sample));
  return {FindInJson(sample, base64), EncodeBase64Npy(sample, base64)};
}

}  // namespace routing_replay::bench
