#include "server/security/client_certificates.h"

#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/x509_vfy.h>

#include <utility>

#include "server/security/pem.h"

namespace routing_replay {
namespace {

using std::chrono::system_clock;
using StorePtr = std::unique_ptr<X509_STORE, OpenSslFree<X509_STORE_free>>;
using VerificationPtr = std::unique_ptr<X509_STORE_CTX, OpenSslFree<X509_STORE_CTX_free>>;

// More certificates than a server has clients; what is over begins anew.
constexpr size_t kMostVerdicts = 16 << 10;

// The stack refers to the certificates.
void FreeStack(STACK_OF(X509) * stack) { sk_X509_free(stack); }
using StackPtr = std::unique_ptr<STACK_OF(X509), OpenSslFree<FreeStack>>;

bool LeadsTo(absl::string_view authorities_pem, X509* certificate, absl::string_view chain_pem,
             system_clock::time_point now) {
  const auto authorities = CertificatesOf(authorities_pem);
  if (!authorities.ok()) return false;
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
  return good;
}

absl::Status NoLongerGood() {
  return absl::UnavailableError("the client certificate of this connection is not good here any more; connect again");
}

}  // namespace

absl::Status ClientCertificates::Check(absl::string_view certificate, absl::string_view chain) const {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(certificate.data()), certificate.size(), hash.data());
  const auto now = clock_.TimeOfDay();
  auto texts = served_.texts();
  {
    MutexLock lock(mutex_);
    if (texts_ != texts || verdicts_.size() >= kMostVerdicts) verdicts_.clear();
    texts_ = texts;
    const auto found = verdicts_.find(hash);
    if (found != verdicts_.end()) {
      return found->second.good && now < found->second.until ? absl::OkStatus() : NoLongerGood();
    }
  }
  Verdict verdict;
  if (const auto shown = CertificatesOf(certificate); shown.ok()) {
    const auto until = ExpiryOf(shown->front());
    if (until.ok()) verdict = {.good = LeadsTo(texts->client_ca, shown->front().get(), chain, now), .until = *until};
  }
  MutexLock lock(mutex_);
  if (texts_ == texts) verdicts_[hash] = verdict;
  return verdict.good ? absl::OkStatus() : NoLongerGood();
}

}  // namespace routing_replay
