// What needs no server: geometries, handles, token ids, lines of the log; and what engines emit: payloads inside texts
// and files, and which rows they hold.
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/log.h"
#include "proto/json/engine_forms.h"
#include "proto/json/rows_file.h"
#include "proto/wire/payload/engine_output.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tensor_view.h"
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

rr_error* rr_log(const rr_call* call, const rr_texts** lines) {
  return Guard([&] {
    return Perform(call, [lines] {
      return Into(lines, client::TakeLogLines(), [](const std::vector<std::string>& taken) {
        return NewList<rr_texts>(
            taken, [](const std::string& line, ResultMemory& memory, rr_text& out) { out = memory.Text(line); });
      });
    });
  });
}

rr_error* rr_sample_handle(const rr_run* run, rr_text sample, int64_t* handle) {
  return Guard([&]() -> CallEnd {
    if (absl::Status status = CheckId(View(sample), "sample"); !status.ok()) return status;
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

constexpr char kTensorPath[] = "append.tensor";

absl::Span<const uint8_t> Bytes(const void* data, size_t size) { return {static_cast<const uint8_t*>(data), size}; }

absl::StatusOr<ObjectDialect> DialectFrom(absl::string_view name) {
  static constexpr std::pair<const char*, ObjectDialect> kNames[] = {{"any", ObjectDialect::kAny},
                                                                     {"prime_rl", ObjectDialect::kPrimeRl},
                                                                     {"skyrl", ObjectDialect::kSkyRl},
                                                                     {"ms_swift", ObjectDialect::kMsSwift},
                                                                     {"sglang", ObjectDialect::kSgLang}};
  for (const auto& [known, dialect] : kNames) {
    if (name == known) return dialect;
  }
  return Invalid("dialect", absl::StrCat("\"", name, "\" is none of any, prime_rl, skyrl, ms_swift, sglang"));
}

// The part of `whole` that `data` is.
rr_range PartOf(absl::Span<const uint8_t> whole, absl::Span<const uint8_t> data) {
  const int64_t begin = data.data() - whole.data();
  return {begin, begin + static_cast<int64_t>(data.size())};
}

rr_form* NewForm(Encoding encoding, DType dtype, absl::Span<const int64_t> shape, rr_range data = {},
                 int64_t start = 0) {
  Result<rr_form> form;
  *form = {.encoding = form.Text(NameOf(encoding)),
           .dtype = form.Text(NameOf(dtype)),
           .shape = form.Copy(shape),
           .shape_count = shape.size(),
           .data = data,
           .start = start};
  return form.Release();
}

absl::StatusOr<TensorShape> ShapeOf(const TensorDescription& tensor, absl::Span<const uint8_t> payload) {
  if (tensor.shape.size() != 2) return PayloadShape(tensor, payload);
  const auto rows = FlatRows(tensor, tensor.shape[0], tensor.shape[1], payload);
  if (!rows.ok()) return rows.status();
  return TensorShape{tensor.dtype, {*rows, tensor.shape[0], tensor.shape[1]}};
}

std::vector<VersionedTokens> VersionsFrom(const rr_weight_span* versions, size_t count) {
  std::vector<VersionedTokens> tokens;
  for (WeightSpan& span : WeightsFrom(versions, count)) {
    const bool by_label = span.version == kUnknownWeightVersion && !span.label.empty();
    const int64_t version = by_label ? VersionNumber(span.label) : span.version;
    tokens.push_back({span.rows.begin, span.rows.end, version, std::move(span.label)});
  }
  return tokens;
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
    const auto description = TensorFrom(*tensor, kTensorPath);
    if (!description.ok()) return description.status();
    return Into(form, ShapeOf(*description, PayloadOf(*tensor)),
                [&](const TensorShape& shape) { return NewForm(description->encoding, shape.dtype, shape.axes); });
  });
}

rr_error* rr_open_nrlre1(const void* text, size_t size, const rr_form** form) {
  return Guard([&]() -> CallEnd {
    const absl::Span<const uint8_t> bytes = Bytes(text, size);
    return Into(form, OpenNrlre1(bytes), [&](const auto& opened) {
      return NewForm(Encoding::kBase64, opened.tensor.dtype, opened.tensor.shape, PartOf(bytes, opened.data));
    });
  });
}

rr_error* rr_open_object(rr_text dialect, rr_text json, const rr_form** form) {
  return Guard([&]() -> CallEnd {
    const auto known = DialectFrom(View(dialect));
    if (!known.ok()) return known.status();
    return Into(form, ObjectFormFromJson(*known, View(json)), [](const auto& opened) {
      return NewForm(Encoding::kBase64, opened.tensor.dtype, opened.tensor.shape, {}, opened.start);
    });
  });
}

rr_error* rr_check_narrowest(const rr_tensor* tensor) {
  return Guard([&]() -> CallEnd {
    const auto description = TensorFrom(*tensor, kTensorPath);
    if (!description.ok()) return description.status();
    const auto view = OpenTensor(*description, PayloadOf(*tensor), DecodeOptions().max_payload_bytes);
    return view.ok() ? CheckNarrowestDType(*view) : view.status();
  });
}

rr_error* rr_open_rows_file(const void* file, size_t size, rr_text name, const rr_form** form) {
  return Guard([&]() -> CallEnd {
    const absl::Span<const uint8_t> bytes = Bytes(file, size);
    return Into(form, OpenRowsFile(bytes, View(name)), [&](const auto& rows) {
      return NewForm(Encoding::kRaw, rows.tensor.dtype, rows.tensor.shape, PartOf(bytes, rows.payload));
    });
  });
}

rr_error* rr_trace_sequences(rr_text index, rr_text stem, int64_t rows, const rr_ranges** ranges) {
  return Guard([&]() -> CallEnd {
    return Into(ranges, TraceSequences(View(index), View(stem), rows), [](const std::vector<RowRange>& sequences) {
      Result<rr_ranges> result;
      *result = result.Ranges(sequences);
      return result.Release();
    });
  });
}

rr_error* rr_find_routes(const void* body, size_t size, const rr_routes** routes) {
  return Guard([&]() -> CallEnd {
    return Into(routes, FindRoutes(Bytes(body, size)),
                [](const std::vector<RouteText>& found) { return NewList<rr_routes>(found, FillRoute); });
  });
}

rr_error* rr_account_rows(const rr_row_claim* claim, rr_row_account* account) {
  return Guard([&]() -> CallEnd {
    const auto rows =
        AccountRows({.prompt_tokens = claim->prompt_tokens,
                     .output_tokens = claim->output_tokens,
                     .start = claim->start,
                     .rows = claim->rows,
                     .short_rows = claim->missing_at_front != 0 ? ShortRows::kMissingAtFront : ShortRows::kRefuse});
    return Into(account, rows, [](const auto& found) {
      return rr_row_account{
          found.row_start, found.missing_rows, found.surplus_rows, {found.take.begin, found.take.end}};
    });
  });
}

rr_error* rr_output_weights(const rr_weight_span* versions, size_t count, int64_t prompt_tokens, int64_t output_tokens,
                            int64_t row_start, const rr_weights** weights) {
  return Guard([&]() -> CallEnd {
    const auto rows = OutputWeights(VersionsFrom(versions, count), prompt_tokens, output_tokens, row_start);
    return Into(weights, rows, [](const std::vector<WeightSpan>& spans) {
      Result<rr_weights> result;
      *result = {result.Weights(spans), spans.size()};
      return result.Release();
    });
  });
}
