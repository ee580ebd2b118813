#include "server/security/client_certificates.h"

#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {
namespace {

using std::chrono::system_clock;
using StorePtr = std::unique_ptr<X509_STORE, OpenSslFree<X509_STORE_free>>;
using VerificationPtr = std::unique_ptr<X509_STORE_CTX, OpenSslFree<X509_STORE_CTX_free>>;

// More certificates than a server has clients; what is over begins anew.
constexpr size_t kMostVerdicts = 16 << 10;

// The stack refers to the certificates.
void FreeStack(STACK_OF(X509) * stack) { sk_X509_free(stack); }
using StackPtr = std::unique_ptr<STACK_OF(X509), OpenSslFree<FreeStack>>;

// Until when the certificate leads to one of the authorities; nullopt: it does not.
std::optional<system_clock::time_point> LeadsUntil(absl::string_view authorities_pem, X509* certificate,
                                                   absl::string_view chain_pem, system_clock::time_point now) {
  const auto authorities = CertificatesOf(authorities_pem);
  if (!authorities.ok()) return std::nullopt;
  const StorePtr store(X509_STORE_new());
  for (const CertificatePtr& authority : *authorities) X509_STORE_add_cert(store.get(), authority.get());
  const auto chain = CertificatesOf(chain_pem);
  const StackPtr between(sk_X509_new_null());
  if (chain.ok()) {
    for (const CertificatePtr& link : *chain) sk_X509_push(between.get(), link.get());
  }
  const VerificationPtr verification(X509_STORE_CTX_new());
  X509_STORE_CTX_init(verification.get(), store.get(), certificate, between.get());
  X509_STORE_CTX_set_default(verification.get(), "ssl_client");
  // Whoever is in the file is trusted, root or not.
  X509_STORE_CTX_set_flags(verification.get(), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  X509_STORE_CTX_set_time(verification.get(), 0, system_clock::to_time_t(now));
  const bool good = X509_verify_cert(verification.get()) == 1;
  ERR_clear_error();
  if (!good) return std::nullopt;
  auto until = system_clock::time_point::max();
  const STACK_OF(X509)* way = X509_STORE_CTX_get0_chain(verification.get());
  for (int i = 0; i < sk_X509_num(way); ++i) {
    const auto expiry = ExpiryOf(sk_X509_value(way, i));
    if (!expiry.ok()) return std::nullopt;
    until = std::min(until, *expiry);
  }
  return until;
}

std::array<unsigned char, 32> HashOf(absl::string_view text) {
  std::array<unsigned char, 32> hash;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return hash;
}

absl::Status NoLongerGood() {
  return absl::UnavailableError("the client certificate of this connection is not good here any more; connect again");
}

}  // namespace

absl::Status ClientCertificates::Check(absl::string_view certificate, absl::string_view chain) const {
  const Hash leaf = HashOf(certificate);
  const auto now = clock_.TimeOfDay();
  auto texts = served_.texts();
  {
    MutexLock lock(mutex_);
    if (texts_ != texts || good_.size() + bad_.size() >= kMostVerdicts) {
      good_.clear();
      bad_.clear();
    }
    texts_ = texts;
    const auto found = good_.find(leaf);
    if (found != good_.end() && now < found->second) return absl::OkStatus();
    if (found != good_.end()) good_.erase(found);
  }
  const Hash both = HashOf(absl::StrCat(certificate, absl::string_view("\0", 1), chain));
  {
    MutexLock lock(mutex_);
    if (texts_ == texts && bad_.contains(both)) return NoLongerGood();
  }
  std::optional<system_clock::time_point> until;
  if (const auto shown = CertificatesOf(certificate); shown.ok()) {
    until = LeadsUntil(texts->client_ca, shown->front().get(), chain, now);
  }
  MutexLock lock(mutex_);
  if (texts_ == texts && until) good_[leaf] = *until;
  if (texts_ == texts && !until) bad_.insert(both);
  return until ? absl::OkStatus() : NoLongerGood();
}

}  // namespace routing_replay::server
