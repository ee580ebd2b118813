// Geometries, handles, token ids and lines of the log: what needs no server.
#include "absl/strings/str_cat.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/log.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

rr_error* rr_geometry_check(const rr_geometry* geometry, const rr_geometry_facts** facts) {
  return Guard([&]() -> CallEnd {
    const auto made = GeometryFrom(*geometry);
    if (!made.ok()) return made.status();
    Result<rr_geometry_facts> result;
    *result = {.max_top_k = made->max_top_k(),
               .id_bytes = made->max_id_bytes(),
               .raw_row_bytes = made->raw_row_bytes(),
               .default_codec = result.Text(CodecName(made->default_codec())),
               .text = result.Text(made->DebugString()),
               .fingerprint = made->fingerprint()};
    *facts = result.Release();
    return {};
  });
}

rr_error* rr_geometry_block_bytes(const rr_geometry* geometry, int64_t rows, rr_text codec, int64_t* bytes) {
  return Guard([&]() -> CallEnd {
    const auto made = GeometryFrom(*geometry);
    if (!made.ok()) return made.status();
    const auto chosen = CodecFrom(View(codec));
    if (!chosen.ok()) return chosen.status();
    if (rows < 0 || rows > kMaxRows) return Invalid("rows", absl::StrCat(rows, " is not in 0 … ", kMaxRows));
    *bytes = made->block_bytes(rows, chosen->value_or(made->default_codec()));
    return {};
  });
}

rr_error* rr_log(const rr_call* call, const rr_texts** lines) {
  return Guard([&] {
    return Perform(call, [lines]() -> CallEnd {
      const auto taken = client::TakeLogLines();
      if (!taken.ok()) return taken.status();
      Result<rr_texts> result;
      const auto texts = result.Array<rr_text>(taken->size());
      for (size_t i = 0; i < texts.size(); ++i) texts[i] = result.Text((*taken)[i]);
      *result = {texts.data(), texts.size()};
      *lines = result.Release();
      return {};
    });
  });
}

rr_error* rr_sample_handle(const rr_run* run, rr_text sample, int64_t* handle) {
  return Guard([&]() -> CallEnd {
    if (absl::Status status = CheckId(View(sample), "sample"); !status.ok()) return status;
    *handle = run == nullptr ? SampleHandle(View(sample)) : run->run->run->Handle(View(sample));
    return {};
  });
}

rr_error* rr_token_ids(const rr_tokens* tokens, rr_text field, rr_text sample, const rr_ids** ids) {
  return Guard([&]() -> CallEnd {
    const auto narrow = TokensFrom(*tokens, View(field), View(sample));
    if (!narrow.ok()) return narrow.status();
    Result<rr_ids> result;
    *result = {result.Copy(absl::MakeConstSpan(*narrow)), narrow->size()};
    *ids = result.Release();
    return {};
  });
}

uint32_t rr_token_crc(uint32_t check, const uint32_t* tokens, size_t count) {
  return Always([&] {
    return TokenCheckExtend(check, {reinterpret_cast<const uint8_t*>(tokens), count * sizeof(uint32_t)});
  });
}
