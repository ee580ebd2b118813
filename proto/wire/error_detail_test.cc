// Details survive every encoding, and hostile bytes still give a status.
#include "routing_replay/wire/error_detail.h"

#include <random>
#include <set>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

constexpr Reason kReasons[] = {Reason::kUnspecified,
                               Reason::kField,
                               Reason::kEncoding,
                               Reason::kDType,
                               Reason::kShape,
                               Reason::kLength,
                               Reason::kIdRange,
                               Reason::kPartialRow,
                               Reason::kDuplicateId,
                               Reason::kAllZeroLayer,
                               Reason::kChecksum,
                               Reason::kRowCount,
                               Reason::kGap,
                               Reason::kOldRevision,
                               Reason::kSealed,
                               Reason::kNotCommitted,
                               Reason::kGeometryMismatch,
                               Reason::kVersionMismatch,
                               Reason::kOtherTokens,
                               Reason::kConflictingRows,
                               Reason::kHandleCollision,
                               Reason::kOverBudget,
                               Reason::kNoRun,
                               Reason::kNoSample,
                               Reason::kDraining};

std::string RandomText(std::mt19937_64& random) {
  std::string text(random() % 20, '\0');
  for (char& c : text) c = static_cast<char>(' ' + random() % 90);
  return text;
}

template <typename T>
std::optional<T> Maybe(std::mt19937_64& random) {
  if (random() % 2 == 0) return std::nullopt;
  // Includes 0 and the limits of the type: an optional field that is set to 0 must stay set.
  constexpr T kEnds[] = {0, 1, -1, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  return random() % 2 == 0 ? kEnds[random() % 5] : static_cast<T>(random());
}

ErrorDetail RandomDetail(std::mt19937_64& random) {
  ErrorDetail d;
  d.reason = kReasons[random() % std::size(kReasons)];
  d.field = RandomText(random);
  d.sample = RandomText(random);
  d.row = Maybe<int64_t>(random);
  d.layer = Maybe<int32_t>(random);
  d.committed_rows = Maybe<int64_t>(random);
  d.revision = Maybe<int64_t>(random);
  d.first_differing_block = Maybe<int64_t>(random);
  d.retry_after_ms = Maybe<int32_t>(random);
  return d;
}

absl::Status RandomError(std::mt19937_64& random, const ErrorDetail& detail) {
  return MakeError(static_cast<absl::StatusCode>(1 + random() % 16), RandomText(random), detail);
}

TEST(ErrorDetailTest, SurvivesStatusRpcAndStream) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const ErrorDetail detail = RandomDetail(random);
    const absl::Status status = RandomError(random, detail);
    ASSERT_EQ(GetErrorDetail(status), detail);
    const absl::Status rpc = DecodeRpcStatus(status.code(), status.message(), EncodeRpcStatus(status));
    ASSERT_EQ(rpc, status);
    ASSERT_EQ(GetErrorDetail(rpc), detail);
    const absl::Status stream = DecodeStreamStatus(EncodeStreamStatus(status));
    ASSERT_EQ(stream, status);
    ASSERT_EQ(GetErrorDetail(stream), detail);
  }
}

TEST(ErrorDetailTest, StatusesWithoutADetail) {
  for (const absl::Status& status : {absl::OkStatus(), absl::UnavailableError("gone"), absl::NotFoundError("")}) {
    EXPECT_EQ(GetErrorDetail(status), std::nullopt);
    EXPECT_EQ(DecodeStreamStatus(EncodeStreamStatus(status)), status);
    EXPECT_EQ(DecodeRpcStatus(status.code(), status.message(), EncodeRpcStatus(status)), status);
  }
}

TEST(ErrorDetailTest, WithSampleKeepsTheRest) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    ErrorDetail detail = RandomDetail(random);
    const absl::Status status = RandomError(random, detail);
    const absl::Status named = WithSample(status, "step-1/7");
    detail.sample = "step-1/7";
    EXPECT_EQ(named.code(), status.code());
    EXPECT_EQ(named.message(), status.message());
    EXPECT_EQ(GetErrorDetail(named), detail);
  }
  EXPECT_EQ(GetErrorDetail(WithSample(absl::InternalError("x"), "a")), ErrorDetail{.sample = "a"});
  EXPECT_OK(WithSample(absl::OkStatus(), "a"));
}

TEST(ErrorDetailTest, InvalidNamesTheFieldInBothParts) {
  const absl::Status status = Invalid(Reason::kShape, "rows", "are none");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "rows: are none");
  EXPECT_EQ(GetErrorDetail(status), (ErrorDetail{.reason = Reason::kShape, .field = "rows"}));
  EXPECT_EQ(Invalid("rows", "are none"), Invalid(Reason::kField, "rows", "are none"));
}

TEST(ErrorDetailTest, CodesOfALaterVersionAreUnknown) {
  // field 1 (code) = 17, 200 and -1.
  for (const std::string& bytes : {std::string("\x08\x11"), std::string("\x08\xC8\x01"),
                                   std::string("\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01")}) {
    EXPECT_EQ(DecodeStreamStatus(bytes).code(), absl::StatusCode::kUnknown);
  }
}

TEST(ErrorDetailTest, ABareCancellationIsAServerThatIsGone) {
  const absl::Status cancelled = absl::CancelledError("asked to stop");
  EXPECT_TRUE(absl::IsUnavailable(DecodeRpcStatus(cancelled.code(), "CANCELLED", "")));
  EXPECT_EQ(DecodeRpcStatus(cancelled.code(), cancelled.message(), EncodeRpcStatus(cancelled)), cancelled);
}

TEST(ErrorDetailTest, CutOrDamagedBytesGiveAStatus) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    const absl::Status status = RandomError(random, RandomDetail(random));
    const std::string rpc = EncodeRpcStatus(status), stream = EncodeStreamStatus(status);
    for (size_t size = 1; size < rpc.size(); ++size) {
      const absl::Status cut = DecodeRpcStatus(status.code(), "message", rpc.substr(0, size));
      EXPECT_EQ(cut.code(), status.code());
      EXPECT_EQ(cut.message(), "message");
    }
    for (std::string damaged : {rpc, stream}) {
      damaged[random() % damaged.size()] ^= static_cast<char>(1 + random() % 255);
      EXPECT_EQ(DecodeRpcStatus(status.code(), "message", damaged).code(), status.code());
      GetErrorDetail(DecodeStreamStatus(damaged));
    }
  }
  EXPECT_EQ(DecodeStreamStatus("\xFF").code(), absl::StatusCode::kInternal);
}

TEST(ErrorDetailTest, EveryReasonHasItsOwnName) {
  std::set<std::string> names;
  for (const Reason reason : kReasons) names.insert(ReasonName(reason));
  EXPECT_EQ(names.size(), std::size(kReasons));
  EXPECT_EQ(names.count("UNKNOWN"), 0u);
  EXPECT_STREQ(ReasonName(static_cast<Reason>(999)), "UNKNOWN");
}

}  // namespace
}  // namespace routing_replay
