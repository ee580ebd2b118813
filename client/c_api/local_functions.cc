// C functions that need no server: geometries, handles, token ids, log lines, and payloads in answers of engines.
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/log.h"
#include "proto/json/routes.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

rr_error* rr_geometry_check(const rr_geometry* geometry, const rr_geometry_facts** facts) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto made, GeometryFrom(*geometry));
    Result<rr_geometry_facts> result;
    *result = {.max_top_k = made.max_top_k(),
               .id_bytes = made.max_id_bytes(),
               .text = result.Text(made.DebugString()),
               .fingerprint = made.fingerprint()};
    *facts = result.Release();
    return {};
  });
}

rr_error* rr_log(const rr_call* call, const rr_texts** lines) {
  return Guard([&] {
    return Perform(call, [lines] {
      return Into(lines, client::TakeLogLines(), [](const std::vector<std::string>& taken) {
        Result<rr_texts> result;
        *result = result.Texts(taken);
        return result.Release();
      });
    });
  });
}

rr_error* rr_sample_handle(const rr_run* run, rr_text sample, int64_t* handle) {
  return Guard([&]() -> CallEnd {
    RR_RETURN_IF_ERROR(CheckId(View(sample), "sample"));
    *handle = run == nullptr ? SampleHandle(View(sample)) : run->shared->run->Handle(View(sample));
    return {};
  });
}

rr_error* rr_token_ids(const rr_tokens* tokens, rr_text field, rr_text sample, const rr_ids** ids) {
  return Guard([&]() -> CallEnd {
    return Into(ids, TokensFrom(*tokens, View(field), View(sample)), [](const std::vector<uint32_t>& narrow) {
      return NewList<rr_ids>(narrow, [](uint32_t id, ResultMemory&, uint32_t& out) { out = id; });
    });
  });
}

uint32_t rr_token_crc(uint32_t check, const uint32_t* tokens, size_t count) {
  return Always([&] {
    return TokenCheckExtend(check, {reinterpret_cast<const uint8_t*>(tokens), count * sizeof(uint32_t)});
  });
}

namespace {

rr_form* NewForm(const TensorShape& shape) {
  Result<rr_form> form;
  *form = {.shape = form.Copy(absl::MakeConstSpan(shape.axes)), .shape_count = shape.axes.size()};
  return form.Release();
}

void FillRoute(const RouteText& text, ResultMemory& memory, rr_route& out) {
  const auto path = memory.Array<rr_step>(text.path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    if (const std::string* key = std::get_if<std::string>(&text.path[i])) {
      path[i] = {memory.Text(*key), -1};
    } else {
      path[i] = {{}, static_cast<int64_t>(std::get<size_t>(text.path[i]))};
    }
  }
  const auto begin = static_cast<int64_t>(text.begin);
  out = {path.data(), path.size(), {begin, begin + static_cast<int64_t>(text.size)}};
}

}  // namespace

rr_error* rr_payload_shape(const rr_tensor* tensor, const rr_form** form) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto description, TensorFrom(*tensor));
    return Into(form, PayloadShape(description, PayloadOf(*tensor)), NewForm);
  });
}

rr_error* rr_find_routes(const void* body, size_t size, const rr_routes** routes) {
  return Guard([&]() -> CallEnd {
    return Into(routes, FindRoutes({static_cast<const uint8_t*>(body), size}),
                [](const std::vector<RouteText>& found) { return NewList<rr_routes>(found, FillRoute); });
  });
}
