#include "server/operations/http/tls_context.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay {
namespace {

namespace ssl = boost::asio::ssl;

absl::StatusOr<std::shared_ptr<ssl::context>> Load(const TlsFiles& files) {
  // The key fits the certificate, or a rotation is half done.
  if (absl::Status status = CheckTlsFiles(files); !status.ok()) return absl::UnavailableError(status.message());
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (!error) context->use_certificate_chain_file(files.certificate, error);
  if (!error) context->use_private_key_file(files.key, ssl::context::pem, error);
  if (error) return absl::UnavailableError(absl::StrCat("--tls-cert, --tls-key: ", error.message()));
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Create(const TlsFiles& files,
                                                               std::chrono::milliseconds interval, const Clock& clock) {
  auto loaded = Load(files);
  if (!loaded.ok()) return loaded.status();
  std::unique_ptr<TlsContext> made(new TlsContext(files, interval, clock));
  made->context_ = *std::move(loaded);
  return made;
}

std::shared_ptr<ssl::context> TlsContext::Get() {
  if (clock_.Now() < next_) return context_;
  next_ = clock_.Now() + interval_;
  if (auto loaded = Load(files_); loaded.ok()) context_ = *std::move(loaded);
  return context_;
}

}  // namespace routing_replay
