// For tests: what every implementation of Store must do (store.h).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/store/store.h"

namespace weft::store {

inline Deadline in_time() { return Deadline::in(std::chrono::seconds(20)); }

inline std::vector<std::string> keys_of(const Listing& listing) {
  std::vector<std::string> keys;
  for (const Item& item : listing.items) keys.push_back(item.key);
  return keys;
}

inline void expect_values(Store& store) {
  EXPECT_EQ(store.get("v/a", in_time()), std::nullopt);
  const Revision first = store.set({"v/a", "1"}, in_time());
  EXPECT_EQ(store.get("v/a", in_time()), (Value{"1", first}));
  const std::string bytes("\0\xff binary \n", 11);
  EXPECT_GT(store.set({"v/a", bytes}, in_time()), first);
  EXPECT_EQ(store.get("v/a", in_time()).value().bytes, bytes);
  EXPECT_EQ(store.add("v/n", 5, in_time()), 5);
  EXPECT_EQ(store.add("v/n", -7, in_time()), -2);
  EXPECT_EQ(store.get("v/n", in_time()).value().bytes, "-2");
  store.append("v/l", "ab", in_time());
  store.append("v/l", "cd", in_time());
  EXPECT_EQ(store.get("v/l", in_time()).value().bytes, "abcd");
  EXPECT_TRUE(store.erase("v/l", in_time()));
  EXPECT_FALSE(store.erase("v/l", in_time()));
  expect_refused([&] { store.add("v/a", 1, in_time()); }, Errc::kInvalidArgument, "not a number");
  expect_refused([&] { store.set({"", "1"}, in_time()); }, Errc::kInvalidArgument, "empty");
  expect_refused(
      [&] {
        store.set({std::string(5000, 'k'), "1"}, in_time());
      },
      Errc::kInvalidArgument, "4096 bytes");
}

inline void expect_swaps(Store& store) {
  const Swap made = store.compare_and_set({"s", "1"}, 0, in_time());
  EXPECT_TRUE(made.done);
  const Swap kept = store.compare_and_set({"s", "2"}, 0, in_time());
  EXPECT_FALSE(kept.done);
  EXPECT_EQ(kept.value, made.value);
  const Swap swapped = store.compare_and_set({"s", "3"}, made.value->revision, in_time());
  EXPECT_TRUE(swapped.done);
  EXPECT_EQ(store.get("s", in_time()), swapped.value);
  store.erase("s", in_time());
  EXPECT_EQ(store.compare_and_set({"s", "4"}, swapped.value->revision, in_time()).value,
            std::nullopt);
}

inline void expect_listings(Store& store) {
  store.set({"l/b", "2"}, in_time());
  store.set({"l/a", "1"}, in_time());
  store.set({"lx", "3"}, in_time());
  const Listing listing = store.list("l/", in_time());
  EXPECT_THAT(keys_of(listing), testing::ElementsAre("l/a", "l/b"));
  EXPECT_EQ(listing.items[1].value.bytes, "2");
  EXPECT_THAT(keys_of(store.list("", in_time())), testing::IsSupersetOf({"l/a", "l/b", "lx"}));
}

inline void expect_waits(Store& store) {
  const Revision since = store.set({"w/a", "1"}, in_time());
  store.set({"other", "1"}, in_time());
  EXPECT_EQ(store.wait("w/", since, Deadline::in(std::chrono::milliseconds(20))), std::nullopt);
  EXPECT_TRUE(store.wait("w/", since - 1, in_time()).has_value());
  std::jthread writer([&store] { store.set({"w/b", "2"}, in_time()); });
  const auto changed = store.wait("w/", since, in_time());
  ASSERT_TRUE(changed.has_value());
  EXPECT_THAT(keys_of(*changed), testing::ElementsAre("w/a", "w/b"));
  writer.join();
  std::jthread eraser([&store] { store.erase("w/a", in_time()); });
  EXPECT_THAT(keys_of(store.wait("w/", changed->revision, in_time()).value()),
              testing::ElementsAre("w/b"));
}

// `ttl`: the shortest lease of the implementation.
inline void expect_leases(Store& store, std::chrono::milliseconds ttl) {
  const LeaseId kept = store.grant(std::chrono::minutes(10), in_time());
  const LeaseId ends = store.grant(ttl, in_time());
  EXPECT_NE(kept, ends);
  store.set({"lease/kept", "1", kept}, in_time());
  const Revision since = store.set({"lease/ends", "1", ends}, in_time());
  store.set({"lease/free", "1", ends}, in_time());
  store.set({"lease/free", "2"}, in_time());  // without a lease now
  EXPECT_TRUE(store.keep_alive(kept, in_time()));
  Revision seen = since;
  while (store.get("lease/ends", in_time()))
    seen = store.wait("lease/", seen, in_time()).value().revision;
  EXPECT_THAT(keys_of(store.list("lease/", in_time())),
              testing::ElementsAre("lease/free", "lease/kept"));
  EXPECT_FALSE(store.keep_alive(ends, in_time()));
  EXPECT_TRUE(store.revoke(kept, in_time()));
  EXPECT_FALSE(store.revoke(kept, in_time()));
  EXPECT_EQ(store.get("lease/kept", in_time()), std::nullopt);
  expect_refused(
      [&] {
        store.set({"lease/x", "1", kept}, in_time());
      },
      Errc::kInvalidArgument, "lease");
}

}  // namespace weft::store
