// Security of channels and calls.
#include <utility>

#include "client/capi/objects.h"
#include "proto/json/json_object.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

namespace {

struct JsonSettings {
  SecuritySettings security;
  bool use_http_proxy = false;
};

absl::StatusOr<JsonSettings> SettingsFrom(absl::string_view text) {
  const auto json = ParseJson(text, "security");
  if (!json.ok()) return json.status();
  JsonSettings settings;
  JsonObject object(*json, "");
  object.Read("tls", settings.security.tls);
  object.Read("cacert", settings.security.cacert);
  object.Read("cert", settings.security.cert);
  object.Read("key", settings.security.key);
  object.Read("server_name", settings.security.server_name);
  object.Read("token_file", settings.security.token_file);
  object.Read("use_http_proxy", settings.use_http_proxy);
  if (absl::Status status = object.status(); !status.ok()) return status;
  return settings;
}

}  // namespace

rr_error* rr_security_new(const char* json, size_t size, rr_security** security) {
  return Guard([&] {
    auto settings = SettingsFrom(Text(json, size));
    if (!settings.ok()) return settings.status();
    auto made = ClientSecurity::Create(std::move(settings->security), settings->use_http_proxy);
    if (!made.ok()) return made.status();
    *security = new rr_security{*std::move(made)};
    return absl::OkStatus();
  });
}

void rr_security_free(rr_security* security) { delete security; }

rr_error* rr_security_channel(rr_security* security, const char* target, size_t size, rr_bytes** json) {
  return Guard([&]() -> absl::Status {
    const auto keys = security->security->KeysFor(Text(target, size));
    if (!keys.ok()) return keys.status();
    nlohmann::json options = nlohmann::json::array();
    if (!keys->server_name.empty()) options.push_back({kServerNameOption, keys->server_name});
    return Give(nlohmann::json{{"encrypted", keys->encrypted},
                               {"root_certificates", keys->root_certificates},
                               {"certificate", keys->certificate},
                               {"key", keys->key},
                               {"channel_options", std::move(options)}},
                json);
  });
}

rr_error* rr_security_authorization(rr_security* security, rr_bytes** value) {
  return Guard([&] {
    auto authorization = security->security->Authorization();
    if (!authorization.ok()) return authorization.status();
    *value = new rr_bytes(*std::move(authorization));
    return absl::OkStatus();
  });
}

int32_t rr_security_token_replaced(rr_security* security, const char* authorization, size_t size,
                                   const rr_error* error) {
  const absl::Status judged =
      NoThrow([&] { return security->security->Judge(Text(authorization, size), error->status()); });
  return judged.code() != error->status().code() ? 1 : 0;
}
