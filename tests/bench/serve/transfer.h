// The data of this benchmark, and the messages that it is divided into.
#ifndef TESTS_BENCH_SERVE_TRANSFER_H_
#define TESTS_BENCH_SERVE_TRANSFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::bench {

// A message is one sample with as many whole windows of rows as fit.
struct MessageSize {
  std::string name;  // "1MiB"
  int64_t bytes = 0;
  int64_t windows = 0;
};

// 48 layers, 8 of 128 experts. Immutable.
class Transfer {
 public:
  explicit Transfer(bool quick);

  static const Geometry& geometry();
  static std::vector<MessageSize> Sizes();  // 1 MiB and 4 MiB.

  int64_t windows() const { return windows_; }
  int64_t bytes() const { return windows_ * WindowBytes(); }
  // Every message of a size has the same number of bytes.
  int32_t Messages(const MessageSize& size) const { return static_cast<int32_t>(windows_ / size.windows); }
  static int64_t Rows(const MessageSize& size) { return size.windows * kDefaultBlockRows; }
  static int64_t Bytes(const MessageSize& size) { return size.windows * WindowBytes(); }
  static int64_t WindowBytes();

 private:
  int64_t windows_;
};

// The transferred data, as rows and as blocks. Immutable.
class TransferData {
 public:
  explicit TransferData(const Transfer& transfer);

  // As an engine holds it: [rows][layers][K] of uint8.
  absl::Span<const uint8_t> rows() const { return rows_.span(); }
  // As consecutive blocks of one window each: the bytes that all ways move.
  absl::Span<const uint8_t> blocks() const { return blocks_.span(); }
  // CRCs of the planes of this window.
  const std::vector<uint32_t>& crcs(int64_t window) const { return crcs_[window]; }

 private:
  Buffer rows_, blocks_;
  std::vector<std::vector<uint32_t>> crcs_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_TRANSFER_H_
