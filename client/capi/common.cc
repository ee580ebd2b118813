// Errors, bytes, endpoints, identities, geometries, runs and retries.
#include <bit>
#include <memory>
#include <utility>

#include "client/capi/objects.h"
#include "client/channel/channel_options.h"
#include "client/channel/endpoint.h"
#include "proto/capi/token_ids.h"
#include "proto/json/geometry_json.h"
#include "proto/json/model_config_json.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

int32_t rr_abi_version(void) { return RR_ABI_VERSION; }

int32_t rr_error_code(const rr_error* error) { return error->code(); }
const char* rr_error_json(const rr_error* error) { return error->json(); }
void rr_error_free(rr_error* error) { delete error; }

rr_error* rr_error_from_rpc(int32_t code, const char* message, size_t message_size, const void* details,
                            size_t details_size) {
  return Guard([&] {
    const absl::string_view bytes = Text(static_cast<const char*>(details), details_size);
    absl::Status status = DecodeRpcStatus(static_cast<absl::StatusCode>(code), Text(message, message_size), bytes);
    return status.ok() ? absl::UnknownError("a failed call without a code") : status;
  });
}

const void* rr_bytes_data(const rr_bytes* bytes) { return bytes->data(); }
size_t rr_bytes_size(const rr_bytes* bytes) { return bytes->size(); }
void rr_bytes_free(rr_bytes* bytes) { delete bytes; }

rr_error* rr_defaults(int32_t use_http_proxy, rr_bytes** json) {
  return Guard([&] {
    nlohmann::json options = nlohmann::json::array();
    for (const ChannelOption& option : ChannelOptions(use_http_proxy != 0)) {
      options.push_back({option.name, option.value});
    }
    const AppenderOptions appender;
    return Give(nlohmann::json{{"version", ROUTING_REPLAY_VERSION},
                               {"endpoint_variable", kEndpointVariable},
                               {"call_timeout_ms", ClientOptions().call_timeout.count()},
                               {"ask_timeout_ms", kAskTimeout.count()},
                               {"queue_timeout_ms", appender.queue_timeout.count()},
                               {"append_timeout_ms", appender.append_timeout.count()},
                               {"max_queued_bytes", appender.max_queued_bytes},
                               {"max_names_per_call", kMaxNamesPerCall},
                               {"channel_options", std::move(options)}},
                json);
  });
}

rr_error* rr_servers_new(const char* endpoint, size_t size, rr_servers** servers) {
  return Guard([&] {
    auto made = std::make_unique<rr_servers>(std::string(Text(endpoint, size)));
    absl::Status known = made->choice.Wait(std::chrono::milliseconds(0)).status();
    if (!known.ok() && !absl::IsDeadlineExceeded(known)) return known;
    *servers = made.release();
    return absl::OkStatus();
  });
}

void rr_servers_free(rr_servers* servers) { delete servers; }

rr_error* rr_servers_present(rr_servers* servers, int64_t timeout_ms, rr_bytes** json) {
  return Guard([&]() -> absl::Status {
    const auto present = servers->choice.Wait(std::chrono::milliseconds(timeout_ms));
    if (!present.ok()) return present.status();
    nlohmann::json options = nlohmann::json::array();
    if (present->round_robin) options.push_back({kPolicyOption, kRoundRobin});
    return Give(
        nlohmann::json{
            {"target", present->target}, {"judged", present->judged()}, {"channel_options", std::move(options)}},
        json);
  });
}

int32_t rr_servers_has_others(rr_servers* servers) {
  return servers->choice.Wait(std::chrono::milliseconds(0)).ok() && servers->choice.HasOthers();
}

void rr_servers_on_unavailable(rr_servers* servers, const char* target, size_t size) {
  servers->choice.OnUnavailable(Text(target, size));
}

void rr_servers_look_again(rr_servers* servers) { servers->choice.LookAgain(); }

rr_error* rr_sample_handle(const char* sample, size_t size, int64_t* handle) {
  return Guard([&] {
    absl::Status status = CheckId(Text(sample, size), "sample");
    if (status.ok()) *handle = SampleHandle(Text(sample, size));
    return status;
  });
}

rr_error* rr_token_ids(const char* json, size_t size, const void* data, size_t data_size, rr_bytes** ids) {
  return Guard([&] {
    auto narrow = TokenIds(Text(json, size), Bytes(data, data_size));
    if (!narrow.ok()) return narrow.status();
    *ids = new rr_bytes(*std::move(narrow));
    return absl::OkStatus();
  });
}

uint32_t rr_token_check(uint32_t check, const uint32_t* tokens, size_t count) {
  static_assert(std::endian::native == std::endian::little);
  return TokenCheckExtend(check, Bytes(tokens, count * sizeof(uint32_t)));
}

rr_error* rr_geometry_new(const char* json, size_t size, rr_geometry** geometry) {
  return Guard([&] {
    auto made = GeometryFrom(Text(json, size));
    if (!made.ok()) return made.status();
    *geometry = new rr_geometry{*std::move(made)};
    return absl::OkStatus();
  });
}

rr_error* rr_geometry_from_config(const char* json, size_t size, const char* source, size_t source_size,
                                  rr_geometry** geometry, rr_bytes** routing) {
  return Guard([&] {
    auto config = ModelConfigFrom(Text(json, size), Text(source, source_size));
    if (!config.ok()) return config.status();
    auto made = std::make_unique<rr_geometry>(rr_geometry{std::move(config->geometry)});
    absl::Status status = Give(ModelRoutingToJson(config->routing), routing);
    *geometry = made.release();
    return status;
  });
}

void rr_geometry_free(rr_geometry* geometry) { delete geometry; }

rr_error* rr_geometry_json(const rr_geometry* geometry, rr_bytes** json) {
  return Guard([&] { return Give(GeometryToJson(geometry->geometry), json); });
}

rr_error* rr_geometry_facts(const rr_geometry* geometry, rr_bytes** json) {
  return Guard([&] {
    const Geometry& g = geometry->geometry;
    return Give(nlohmann::json{{"max_top_k", g.max_top_k()},
                               {"id_bytes", g.max_id_bytes()},
                               {"raw_row_bytes", g.raw_row_bytes()},
                               {"default_codec", CodecName(g.default_codec())},
                               {"fingerprint", g.fingerprint()},
                               {"text", g.DebugString()}},
                json);
  });
}

rr_error* rr_geometry_block_bytes(const rr_geometry* geometry, int64_t rows, const char* codec, size_t codec_size,
                                  int64_t* bytes) {
  return Guard([&] {
    const auto chosen = CodecFrom(Text(codec, codec_size));
    if (!chosen.ok()) return chosen.status();
    if (rows < 0 || rows > kMaxRows)
      return Invalid(Reason::kField, "rows", absl::StrCat(rows, " is not in 0 … ", kMaxRows));
    *bytes = geometry->geometry.block_bytes(rows, *chosen);
    return absl::OkStatus();
  });
}

rr_error* rr_run_new(const char* json, size_t size, rr_run** run) {
  return Guard([&] {
    auto info = RunFrom(Text(json, size));
    if (!info.ok()) return info.status();
    *run = new rr_run{*std::move(info)};
    return absl::OkStatus();
  });
}

void rr_run_free(rr_run* run) { delete run; }

rr_error* rr_retry_new(int64_t deadline, rr_retry** retry) {
  return Guard([&] {
    *retry = new rr_retry(At(deadline));
    return absl::OkStatus();
  });
}

void rr_retry_free(rr_retry* retry) { delete retry; }

int64_t rr_retry_wait(rr_retry* retry, const rr_error* error, int64_t now) {
  const auto wait = NoThrow([&] { return retry->schedule.WaitAfter(error->status(), At(now)); });
  return wait ? std::chrono::nanoseconds(*wait).count() : -1;
}
