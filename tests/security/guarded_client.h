// Our client with certificate and token files.
#ifndef TESTS_SECURITY_GUARDED_CLIENT_H_
#define TESTS_SECURITY_GUARDED_CLIENT_H_

#include <string>
#include <vector>

#include "routing_replay/client.h"
#include "tests/security/guarded_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

// The client's files: a CA certificate (empty: plaintext), a token, and perhaps a certificate of its own.
class ClientFiles {
 public:
  ClientFiles(const std::string& authority, const std::string& token) : encrypted_(!authority.empty()) {
    ReplaceFile(path("ca"), authority);
    SetToken(token);
  }

  void SetToken(const std::string& token) const { ReplaceFile(path("token"), token + "\n"); }
  void SetAuthorities(const std::string& pem) const { ReplaceFile(path("ca"), pem); }
  void SetIdentity(const TestIdentity& identity) {
    has_identity_ = true;
    ReplaceFile(path("key"), identity.key);
    ReplaceFile(path("crt"), identity.certificate);
  }

  ClientOptions Options(const std::string& endpoint) const {
    ClientOptions options{.endpoint = endpoint, .security = {.token_file = path("token")}};
    if (encrypted_) options.security.cacert = path("ca");
    if (has_identity_) options.security.cert = path("crt");
    if (has_identity_) options.security.key = path("key");
    return options;
  }

 private:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  const ScratchDirectory directory_;
  const bool encrypted_;
  bool has_identity_ = false;
};

// The geometry of the runs that OpenRun of guarded_server.h opens.
inline Geometry SmallGeometry() {
  return *Geometry::Create({.num_layers = 1, .moe_layer_ids = {0}, .num_experts = {4}, .top_k = {1}});
}

// Appends three rows and reads them back.
inline void ExpectRoundTrip(Run& run, const std::string& sample) {
  constexpr std::chrono::seconds kPatience(30);
  const std::vector<uint8_t> ids = {3, 1, 2};
  const TensorDescription tensor{.dtype = DType::kU8, .shape = {3, 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
  const auto appender = run.NewAppender();
  ASSERT_OK(appender->Append({.sample = sample, .seal_num_tokens = 4}, tensor, ids));
  ASSERT_OK(appender->Flush(kPatience));
  const auto read = run.ReadRows({.samples = {{.sample = sample}}}, kPatience);
  ASSERT_OK(read);
  EXPECT_EQ((*read)[0].record.status, SampleStatus::kOk) << (*read)[0].record.message;
  ASSERT_EQ((*read)[0].layers.size(), 1u);
  EXPECT_THAT((*read)[0].layers[0], ::testing::ElementsAre(3, 1, 2));
}

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_GUARDED_CLIENT_H_
