// Deleters of OpenSSL's objects, for std::unique_ptr.
#ifndef PROTO_WIRE_OPENSSL_FREE_H_
#define PROTO_WIRE_OPENSSL_FREE_H_

namespace routing_replay {
inline namespace wire {

// std::unique_ptr<X509, OpenSslFree<X509_free>>
template <auto free_function>
struct OpenSslFree {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_OPENSSL_FREE_H_
