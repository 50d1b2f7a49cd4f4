#include "weft/ps/table/internal/key_index.h"

#include <gtest/gtest.h>

#include <unordered_map>
#include <vector>

#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"

namespace weft::ps::internal {
namespace key_index_test {

// The key of a hash: the steps of hash_key() backwards.
std::uint64_t key_of_hash(std::uint64_t hash) {
  const auto inverse = [](std::uint64_t factor) {
    std::uint64_t found = factor;
    for (int i = 0; i < 6; ++i) found *= 2 - factor * found;
    return found;
  };
  const auto unshift = [](std::uint64_t x, int by) {
    std::uint64_t found = x;
    for (int i = 0; i < 64 / by; ++i) found = x ^ (found >> by);
    return found;
  };
  hash = unshift(hash, 31) * inverse(0x94d049bb133111eb);
  hash = unshift(hash, 27) * inverse(0xbf58476d1ce4e5b9);
  return unshift(hash, 30);
}

TEST(KeyIndex, HashIsABijection) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t hash = random.next_u64();
    ASSERT_EQ(hash_key(key_of_hash(hash)), hash);
  }
}

TEST(KeyIndex, FindsWhatAMapFindsThroughInsertsErasesAndSplits) {
  Budget budget(0);
  KeyIndex index("", budget);
  std::unordered_map<std::uint64_t, std::uint32_t> model;
  Random random(2);
  for (std::uint32_t i = 0; i < 120'000; ++i) {
    const std::uint64_t key = random.below(100'000), hash = hash_key(key);
    if (model.count(key) > 0 && random.below(3) == 0) {
      index.erase(hash, key);
      model.erase(key);
    } else if (model.emplace(key, i).second) {
      index.insert(hash, key, i);
    }
  }
  EXPECT_EQ(index.size(), model.size());
  for (std::uint64_t key = 0; key < 100'000; ++key) {
    const auto found = model.find(key);
    ASSERT_EQ(index.find(hash_key(key), key),
              found == model.end() ? KeyIndex::kNone : found->second)
        << key;
  }
}

TEST(KeyIndex, KeysOfOneLineAreFoundBeyondItAndAfterErasing) {
  Budget budget(0);
  KeyIndex index("", budget);
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 0; i < 64; ++i) keys.push_back(key_of_hash(i << 40 | 4095));  // last line
  for (std::uint32_t i = 0; i < keys.size(); ++i) index.insert(hash_key(keys[i]), keys[i], i);
  for (std::size_t i = 0; i < keys.size(); i += 2) index.erase(hash_key(keys[i]), keys[i]);
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(index.find(hash_key(keys[i]), keys[i]), i % 2 == 0 ? KeyIndex::kNone : i);
  }
  for (std::size_t i = 1; i < keys.size(); i += 2) index.erase(hash_key(keys[i]), keys[i]);
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(index.find(hash_key(keys[1]), keys[1]), KeyIndex::kNone);
}

TEST(KeyIndex, ReportsKeysWhoseHashesAreTooMuchAlike) {
  constexpr std::uint32_t kCapacity = 5 * 4096;
  Budget budget(0);
  KeyIndex index("", budget);
  const auto key_at = [](std::uint64_t i) { return key_of_hash(i * 0x9e3779b1 & 0xffffffff); };
  for (std::uint32_t i = 0; i < kCapacity; ++i) index.insert(hash_key(key_at(i)), key_at(i), i);
  const std::uint64_t more = key_at(kCapacity);
  expect_refused([&] { index.insert(hash_key(more), more, 0); }, Errc::kUnavailable,
                 "too many keys hash alike");
  EXPECT_EQ(index.find(hash_key(more), more), KeyIndex::kNone);
  for (std::uint32_t i = 0; i < kCapacity; ++i)
    ASSERT_EQ(index.find(hash_key(key_at(i)), key_at(i)), i);
}

TEST(KeyIndex, ChangesNothingIfTheBudgetDoesNotAllowASplit) {
  Budget budget(300'000);  // one segment of 256 KiB
  KeyIndex index("", budget);
  std::uint32_t keys = 0;
  const auto insert = [&] { index.insert(hash_key(keys), keys, keys); };
  for (; keys < 5 * 4096 * 7 / 10; ++keys) insert();
  expect_refused(insert, Errc::kUnavailable, "the table is full: it uses 262144 of 300000 bytes");
  EXPECT_EQ(index.size(), keys);
  EXPECT_EQ(budget.used(), 262144u);
  for (std::uint32_t key = 0; key < keys; ++key) ASSERT_EQ(index.find(hash_key(key), key), key);
}

}  // namespace key_index_test
}  // namespace weft::ps::internal
