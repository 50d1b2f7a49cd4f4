#include "weft/store/internal/key_values.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"

namespace weft::store {
namespace key_values_test {

using internal::KeyValues;
using internal::Op;
using internal::Request;
using internal::Response;
using internal::Status;

Request add_one(std::uint64_t client, std::uint64_t sequence) {
  return {.op = Op::kAdd, .client = client, .sequence = sequence, .key = "n", .number = 1};
}

std::string value_of(const KeyValues& state, const std::string& key) {
  const auto value = state.read({.op = Op::kGet, .key = key}).value;
  return value ? value->bytes : "none";
}

TEST(KeyValues, ApplyARequestOnceAndGiveItsFirstAnswerAgain) {
  KeyValues state;
  const auto first = state.apply(add_one(7, 1));
  EXPECT_EQ(state.apply(add_one(7, 1)), first);
  EXPECT_EQ(state.answered(7, 1), first);
  EXPECT_EQ(value_of(state, "n"), "1");
  state.apply(add_one(8, 1));  // another client
  state.apply(add_one(7, 2));
  EXPECT_EQ(value_of(state, "n"), "3");
  EXPECT_EQ(state.apply(add_one(7, 1)), std::nullopt);  // older than the last one: nobody waits
  EXPECT_EQ(value_of(state, "n"), "3");
}

TEST(KeyValues, ForgetTheSessionThatWasSilentForLongest) {
  KeyValues state;
  for (std::uint64_t client = 1; client <= KeyValues::kMaxSessions; ++client)
    state.apply(add_one(client, 1));
  state.apply(add_one(1, 2));  // not silent
  state.apply(add_one(1'000'000, 1));
  EXPECT_TRUE(state.answered(1, 2));
  EXPECT_FALSE(state.answered(2, 1));
  EXPECT_TRUE(state.answered(3, 1));
}

TEST(KeyValues, ForgetSessionsWhoseAnswersTakeTooMuchMemory) {
  KeyValues state;
  const std::string value(kMaxValueBytes, 'x');
  state.apply({.op = Op::kSet, .client = 1, .sequence = 1, .key = "a", .value = value});
  for (std::uint64_t client = 2; client < 12; ++client)  // answered with the value
    state.apply({.op = Op::kCompareAndSet, .client = client, .sequence = 1, .key = "a"});
  EXPECT_FALSE(state.answered(2, 1));
  EXPECT_FALSE(state.answered(3, 1));
  EXPECT_TRUE(state.answered(4, 1));
  EXPECT_EQ(state.answered(11, 1)->value->bytes, value);
}

TEST(KeyValues, IgnoreACopyOfARequestAlsoAfterTheEndOfItsSession) {
  KeyValues state;
  state.apply(add_one(7, 1));
  state.apply({.op = Op::kEndSession, .client = 7, .sequence = 2});
  EXPECT_EQ(state.apply(add_one(7, 1)), std::nullopt);
  EXPECT_EQ(value_of(state, "n"), "1");
}

TEST(KeyValues, RefuseSumsBeyondTheirRangeAndChangeNothing) {
  KeyValues state;
  Request add = add_one(1, 1);
  add.number = INT64_MAX;
  state.apply(add);
  EXPECT_EQ(state.apply(add_one(1, 2))->status, Status::kInvalid);
  EXPECT_EQ(value_of(state, "n"), std::to_string(INT64_MAX));
}

TEST(KeyValues, RefuseValuesWhenTheStoreIsFullAndTakeThemWhenThereIsRoomAgain) {
  KeyValues state;
  const auto set = [&](const std::string& key, std::uint64_t sequence) {
    return state
        .apply({.op = Op::kSet,
                .client = 1,
                .sequence = sequence,
                .key = key,
                .value = std::string(kMaxValueBytes, 'x')})
        ->status;
  };
  std::uint64_t sequence = 0;
  for (char key = 'a'; key < 'h'; ++key)
    EXPECT_EQ(set(std::string(1, key), ++sequence), Status::kDone);
  EXPECT_EQ(set("h", ++sequence), Status::kFull);
  state.apply({.op = Op::kErase, .client = 1, .sequence = ++sequence, .key = "a"});
  EXPECT_EQ(set("h", ++sequence), Status::kDone);
}

TEST(KeyValues, EndALeaseOnlyIfItWasNotKeptAliveInTheMeantime) {
  KeyValues state;
  const auto lease = static_cast<LeaseId>(
      state.apply({.op = Op::kGrant, .client = 1, .sequence = 1, .number = 1000})->number);
  state.apply(
      {.op = Op::kSet, .client = 1, .sequence = 2, .key = "a", .value = "1", .lease = lease});
  const Request expires{.op = Op::kExpire, .lease = lease, .revision = 0};
  state.apply({.op = Op::kKeepAlive, .client = 1, .sequence = 3, .lease = lease});
  EXPECT_EQ(state.apply(expires)->status, Status::kNotDone);
  EXPECT_EQ(value_of(state, "a"), "1");
  EXPECT_EQ(state.apply({.op = Op::kExpire, .lease = lease, .revision = 1})->status, Status::kDone);
  EXPECT_EQ(value_of(state, "a"), "none");
}

TEST(KeyValues, GiveTheSameStateThroughASnapshot) {
  KeyValues state;
  state.apply(add_one(1, 1));
  state.apply({.op = Op::kGrant, .client = 2, .sequence = 1, .number = 1000});
  state.apply({.op = Op::kSet, .client = 2, .sequence = 2, .key = "a", .value = "1", .lease = 1});
  KeyValues other;
  other.restore(state.snapshot());
  EXPECT_EQ(other.snapshot(), state.snapshot());
  EXPECT_EQ(other.answered(1, 1), state.answered(1, 1));
  for (KeyValues* one : {&state, &other})
    one->apply({.op = Op::kRevoke, .client = 2, .sequence = 3, .lease = 1});
  EXPECT_EQ(other.snapshot(), state.snapshot());
  EXPECT_EQ(value_of(other, "a"), "none");
  expect_refused([&] { other.restore(state.snapshot() + "x"); }, Errc::kCorrupt, "malformed");
  EXPECT_EQ(other.snapshot(), state.snapshot());
}

TEST(KeyValues, KnowWhetherAPrefixHasChangedSinceARevision) {
  KeyValues state;
  std::uint64_t sequence = 0;
  const auto set = [&](const std::string& key) {
    return state
        .apply({.op = Op::kSet, .client = 1, .sequence = ++sequence, .key = key, .value = "1"})
        ->revision;
  };
  const Revision since = set("a/1");
  set("b/1");
  EXPECT_FALSE(state.changed_since("a/", since));
  EXPECT_TRUE(state.changed_since("b/", since));
  state.apply({.op = Op::kErase, .client = 1, .sequence = ++sequence, .key = "a/1"});
  EXPECT_TRUE(state.changed_since("a/", since));
  for (int i = 0; i < 5000; ++i) set("b/1");
  EXPECT_TRUE(state.changed_since("c/", since));  // too old to be known
  EXPECT_FALSE(state.changed_since("c/", state.revision()));
}

}  // namespace key_values_test
}  // namespace weft::store
