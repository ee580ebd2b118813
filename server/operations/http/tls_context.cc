#include "server/operations/http/tls_context.h"

#include <boost/asio/buffer.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

namespace ssl = boost::asio::ssl;

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Create(const ServedTls& served) {
  std::unique_ptr<TlsContext> made(new TlsContext(served));
  if (absl::Status status = made->Take(served.texts()); !status.ok()) return status;
  return made;
}

absl::Status TlsContext::Take(std::shared_ptr<const TlsTexts> texts) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (!error) context->use_certificate_chain(boost::asio::buffer(texts->certificate), error);
  if (!error) context->use_private_key(boost::asio::buffer(texts->key), ssl::context::pem, error);
  if (error) return absl::UnavailableError(absl::StrCat("--tls-cert, --tls-key: ", error.message()));
  context_ = std::move(context);
  taken_ = std::move(texts);
  return absl::OkStatus();
}

std::shared_ptr<ssl::context> TlsContext::Get() {
  if (auto texts = served_.texts(); texts != taken_) Take(std::move(texts)).IgnoreError();
  return context_;
}

}  // namespace routing_replay::server
